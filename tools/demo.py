"""`make demo`: a real model from its package to an answer, through vLLM, checked token by token.

    python -m tools.demo [smollm2-135m|gemma3-270m|FOLDER] [--impl NAME] [--eager]

Prepares the model, inspects it, asks Hugging Face for the reference, serves the model with
`vllm serve ... --model-impl neuron-transformers`, sends a completion and a chat request, compares,
and stops the server. Exit code 0 only if all of it worked and the tokens are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neuron_autoport.cache import cache_folder
from neuron_autoport.errors import AutoportError
from tools.server import (
    Server,
    ServerFailed,
    free_port,
    fused_sites,
    progress_line,
    tail,
    why_it_ended,
)

BIN = Path(sys.executable).parent
IMPL = "neuron-transformers"
PROMPT = "Gravity is the force that"
QUESTION = "What is the capital of France?"
LONGEST = 2048
TOKENS = 32
STEPS = 6


def heading(number: int, title: str) -> None:
    """Announce a step."""
    print(f"\n[{number}/{STEPS}] {title}", flush=True)


def bold(text: str) -> str:
    """`text` in bold on a terminal."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def run_tool(what: str, *arguments: str) -> str:
    """stdout of one of this repository's tools; stderr is shown only when it fails."""
    result = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise AutoportError(
            f"{what} failed\n{tail(result.stderr)}", next_step="see the lines above"
        )
    return result.stdout


def prepare_model(model: str) -> Path:
    """The model's folder."""
    result = subprocess.run(
        [sys.executable, "-m", "tools.prepare_model", model],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise AutoportError("the model could not be prepared", next_step="see the lines above")
    return Path(result.stdout.splitlines()[-1])


def inspect(folder: Path) -> None:
    """Show what autoport finds in the model."""
    command = [str(BIN / "autoport"), "inspect", str(folder)]
    print(f"$ autoport inspect {folder}", flush=True)
    if not Path(command[0]).exists():
        raise AutoportError("the command autoport is not installed", command[0], "make setup")
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise AutoportError(
            f"`autoport inspect` ended with code {code}", str(folder), "see the lines above"
        )


def reference(folder: Path) -> dict[str, Any]:
    """What Hugging Face eager gives in float32: see tools/hf_reference.py."""
    output = run_tool(
        "Hugging Face's own run of the model",
        "tools.hf_reference",
        str(folder),
        "--prompt",
        PROMPT,
        "--tokens",
        str(TOKENS),
    )
    return dict(json.loads(output.splitlines()[-1]))


def serve_command(folder: Path, impl: str, port: int, eager: bool) -> list[str]:
    """The `vllm serve` command; `vllm` is this environment's."""
    command = ["vllm", "serve", str(folder), "--model-impl", impl, "--dtype", "float32"]
    command += ["--max-model-len", str(longest(folder))]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "demo"]
    return command + (["--enforce-eager"] if eager else [])


def longest(folder: Path) -> int:
    """Tokens of the longest sequence served: what the demo needs, or all a smaller model has."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return LONGEST
    return min(LONGEST, int(config.get("max_position_embeddings") or LONGEST))


def serve_environment() -> dict[str, str]:
    """The environment for vLLM: no network, and a key-value cache of 1 GiB if none is set."""
    env = dict(os.environ)
    env.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", PYTHONUNBUFFERED="1")
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    env["PATH"] = f"{BIN}{os.pathsep}{env.get('PATH', '')}"
    return env


@contextmanager
def serving(folder: Path, impl: str, eager: bool, timeout: float) -> Iterator[tuple[Server, str]]:
    """A ready server and its base URL; the server is stopped however the block ends."""
    port = free_port()
    command = serve_command(folder, impl, port, eager)
    print(f"$ {' '.join(command)}")
    command[0] = str(BIN / "vllm")
    log = cache_folder("logs") / f"serve-{folder.name}.log"
    print(f"  log: {log}", flush=True)
    url = f"http://127.0.0.1:{port}"
    server = Server(command, log, f"{url}/health", serve_environment())
    try:
        with server:
            try:
                seconds = server.wait(timeout, progress_line())
            finally:
                if sys.stdout.isatty():
                    print("\r\x1b[2K", end="")
            print(f"  ready after {seconds:.0f} s", flush=True)
            yield server, f"{url}/v1"
    except ServerFailed as failure:
        raise AutoportError(
            f"vLLM did not start: {failure}\n{why_it_ended(server.read_log())}",
            where=str(log),
            next_step=f"read that log; .venv/bin/python -m tools.demo {folder} with --eager does "
            "without a C++ compiler, with --impl transformers without autoport",
        ) from failure


def ask_completion(client: Any) -> Any:
    """The greedy completion of `PROMPT`; vLLM adds the token ids of prompt and answer."""
    answer = client.completions.create(
        model="demo",
        prompt=PROMPT,
        temperature=0,
        max_tokens=TOKENS,
        extra_body={"return_token_ids": True},
    )
    return answer.choices[0]


def ask_chat(client: Any) -> str:
    """The greedy answer to `QUESTION`."""
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=TOKENS,
    )
    return str(answer.choices[0].message.content)


def compare(choice: Any, expected: dict[str, Any], impl: str) -> None:
    """Raise unless prompt and answer are, token for token, those of Hugging Face."""
    for what, ours, theirs in (
        ("the prompt", choice.prompt_token_ids, expected["prompt_ids"]),
        ("the completion", choice.token_ids, expected["ids"]),
    ):
        if ours == theirs:
            continue
        place = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        raise AutoportError(
            f"{what} differs from Hugging Face at token {place}:\n"
            f"    vLLM          {ours}\n    Hugging Face  {theirs}\n"
            f"    vLLM          {choice.text!r}\n    Hugging Face  {expected['text']!r}",
            next_step="the same with --impl transformers: if that differs too, it is not the "
            f"rewrite (this was --impl {impl})",
        )
    print(f"  all {len(expected['ids'])} tokens are those of Hugging Face eager in float32")


def report_fused(server: Server, impl: str) -> None:
    """Print how many sites run fused, as the server's log says."""
    found = fused_sites(server.read_log())
    if found is not None:
        print(f"  {found[2]}")
    elif impl == IMPL:
        raise AutoportError(
            "the server's log does not say what was fused: the plugin was not active",
            where=str(server.log),
            next_step="make setup",
        )
    else:
        print(f"  nothing is fused with --model-impl {impl}")


def has_chat_template(folder: Path) -> bool:
    """Whether the model can be asked in chat form."""
    settings = folder / "tokenizer_config.json"
    return (folder / "chat_template.jinja").is_file() or (
        settings.is_file() and "chat_template" in json.loads(settings.read_text())
    )


def demo(model: str, impl: str, eager: bool, timeout: float) -> None:
    """All steps, one after the other."""
    heading(1, f"model {model}")
    folder = prepare_model(model)
    print(f"  {folder}")
    heading(2, "inspect")
    inspect(folder)
    heading(3, "reference: Hugging Face, eager, float32")
    expected = reference(folder)
    print(f"  {PROMPT!r} -> {len(expected['ids'])} tokens")
    heading(4, "serve")
    with serving(folder, impl, eager, timeout) as (server, url):
        import openai

        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
        try:
            heading(5, "completion, compared with the reference")
            choice = ask_completion(client)
            print(f"  {PROMPT}{bold(choice.text)}")
            compare(choice, expected, impl)
            report_fused(server, impl)
            heading(6, "chat")
            if has_chat_template(folder):
                print(f"  user: {QUESTION}\n  assistant: {ask_chat(client)}")
            else:
                print("  left out: this model has no chat template")
        except openai.OpenAIError as error:
            raise AutoportError(
                f"the request failed: {error}; the end of the server's log:\n"
                f"{tail(server.read_log())}",
                where=str(server.log),
                next_step="read the log named above",
            ) from error
    print("\nserver stopped, all steps done", flush=True)


def _interrupt(number: int, _frame: object) -> None:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that the server is stopped."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    """Run the demo; the exit code is 0 only if every step worked."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo")
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--impl", default=IMPL, help=f"vLLM's --model-impl ({IMPL})")
    parser.add_argument("--eager", action="store_true", help="serve with --enforce-eager")
    parser.add_argument("--timeout", type=float, default=900, help="seconds to wait for vLLM (900)")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    for name in ("NO_PROXY", "no_proxy"):  # the server is on this machine
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    start = time.monotonic()
    try:
        demo(arguments.model, arguments.impl, arguments.eager, arguments.timeout)
    except AutoportError as error:
        print(f"\nthe demo stopped in the step above: {error.text()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left running", file=sys.stderr)
        return 130
    print(f"{time.monotonic() - start:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
