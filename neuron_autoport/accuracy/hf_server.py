"""The reference for level 1: Hugging Face eager behind the few routes of the OpenAI API that lm_eval calls.

`POST /v1/completions` with token ids: scores of a given text (`echo`), or greedy text up to a stop word. So lm_eval
asks ported model and reference with the very same requests.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from neuron_autoport.accuracy.teacher import force_batch

_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def reference_server(model: Any, tokenizer: Any) -> Iterator[str]:
    """Serve a Hugging Face model on a free local port; gives the base URL."""

    class Handler(_Handler):
        reference = _Reference(model, tokenizer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    reference: _Reference

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size))
        with _ONE_AT_A_TIME:
            answer = json.dumps(self.reference.complete(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: progress is shown elsewhere."""


class _Reference:
    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompts = body["prompt"]
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        ids = [self.tokenizer(p)["input_ids"] if isinstance(p, str) else p for p in prompts]
        found = self.scores(ids) if body.get("echo") else [self.text(x, body) for x in ids]
        return {"choices": [{"index": i, **answer} for i, answer in enumerate(found)]}

    def scores(self, prompts: list[list[int]]) -> list[dict[str, Any]]:
        """Log probability of each token given those before it, and that of the likeliest there."""
        rows = force_batch(self.model, [tuple(ids) for ids in prompts], pad=0)
        return [_scored(ids, row.logits) for ids, row in zip(prompts, rows, strict=True)]

    def text(self, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        """Greedy continuation, cut before the first stop word."""
        tokens = torch.tensor([ids])
        with torch.no_grad():
            output = self.model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                max_new_tokens=int(body.get("max_tokens", 16)),
            )  # fmt: skip
        text = self.tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
        stops = body.get("stop") or []
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.partition(stop)[0]
        return {"text": text}


def _scored(ids: list[int], logits: torch.Tensor) -> dict[str, Any]:
    table = torch.log_softmax(logits, dim=-1)
    likeliest = table.max(-1)
    token: list[float | None] = [None]
    top: list[dict[str, float] | None] = [None]
    for place, following in enumerate([*ids[1:], int(likeliest.indices[-1])]):
        own = float(table[place, following])
        token.append(own)
        best = {str(int(likeliest.indices[place])): float(likeliest.values[place])}
        top.append({**best, str(following): own})
    return {"text": "", "logprobs": {"token_logprobs": token, "top_logprobs": top}}
