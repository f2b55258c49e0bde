"""Requests that run alone: where no cache of vLLM keeps what a token takes from earlier ones, transformers' own does.

Each request has the cache that transformers' model makes for it, known by the request's block of a cache of vLLM's
that holds nothing else. A model that does not go on rightly from its own cache has its tokens for a cache, and reads
them all again at every step. Either is right and slow: no two requests share a product of matrices, nothing is
compiled. Which one it is, runs of the small model show (`alone_proof.py`).
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import MambaSpec

from neuron_autoport.hosts.vllm.compat import HostError
from neuron_autoport.prove.modules import RUN_ERRORS

Caches = dict[str, Any]  # by the argument of the model's forward that they come back as
_READ = "input_ids"
LAYER = "model.requests.0"
_UNKNOWN = 2**24  # bytes taken for a request where they cannot be read
_LEAST = 2**20  # of a block; vLLM keeps a record of every block


@dataclass(frozen=True)
class Alone:
    """That the requests of a model run alone. reason: why no cache of vLLM would do.

    several: it goes on from its cache with several tokens at once, else with one. again: it is not to use a cache.
    plain: it changes weights as it runs; vLLM's layers, and fused ones, would not see that, so it stays as it is.
    """

    reason: str
    several: bool
    again: bool = False
    plain: bool = False

    def advance(
        self, base: Any, ids: torch.Tensor, start: int, caches: Caches
    ) -> tuple[torch.Tensor, Caches]:
        """Go on with one request: ids [1, T] at positions from `start` -> rows [1, T, H], and its caches after them."""
        return (read_again if self.again else go_on)(base, ids, start, caches)

    def line(self, size: int | None) -> str:
        """For the start-up log. size: bytes of a request's caches, at most; None if that is not known."""
        if self.again:
            how = "and is read again from its first token at every step, which takes long"
        elif size is None:
            how = f"on transformers' own cache, of unknown size, which vLLM counts as {_UNKNOWN} bytes"
        else:
            how = f"on transformers' own cache, {size} bytes at most, which vLLM counts but does not hold"
        weights = (
            "; it changes its weights as it runs, so nothing is rewritten" if self.plain else ""
        )
        return f"each request runs alone, not compiled, {how}: {self.reason}{weights}"


def read_again(
    base: Any, ids: torch.Tensor, start: int, caches: Caches
) -> tuple[torch.Tensor, Caches]:
    """The whole request, without a cache."""
    read = torch.cat([*caches.values(), ids], dim=1)
    known = inspect.signature(base.forward).parameters
    given = {"use_cache": False} if "use_cache" in known else {}
    rows: torch.Tensor = base(input_ids=read, return_dict=True, **given)[0]
    return rows[:, start:], {_READ: read}


def go_on(base: Any, ids: torch.Tensor, start: int, caches: Caches) -> tuple[torch.Tensor, Caches]:
    """Go on with one request: ids [1, T] at positions from `start` -> rows [1, T, H], and its caches after them."""
    known = inspect.signature(base.forward).parameters
    given: dict[str, Any] = dict(caches)
    if "position_ids" in known:
        given["position_ids"] = torch.arange(start, start + ids.shape[1])[None]
    out = base(input_ids=ids, use_cache=True, return_dict=True, **given)
    names = list(out.keys())[1:]
    return out[0], {n: out[n] for n in names if n in known and out[n] is not None}


class Requests(MambaBase):
    """The requests of a step and their caches. To vLLM it is a layer with a state that has a block a request.

    Args:
        how: they run. at_once: requests that vLLM runs at once. longest: tokens of a request, at most.
        size: bytes of a request's caches, by which vLLM counts how many fit in its memory; it does not hold them.
            None if it is not known.
    """

    def __init__(self, how: Alone, *, at_once: int, longest: int, size: int | None) -> None:
        self.how, self.at_once, self.longest, self.size = how, at_once, longest, size
        self.kept: OrderedDict[int, Caches] = OrderedDict()

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((max(self.size or _UNKNOWN, _LEAST) // 4,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.LINEAR

    def get_kv_cache_spec(self, vllm_config: Any) -> MambaSpec:
        """One block for a request. It is as long as any request, so never full, and no prefix of it is shared."""
        return MambaSpec(
            shapes=self.get_state_shape(),
            dtypes=self.get_state_dtype(),
            block_size=self.longest,
            mamba_type=self.mamba_type,
        )

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Nothing is kept in it."""
        self.kv_cache = (kv_cache,)

    def run(self, base: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """The tokens of a step [T], one request after the other -> rows [T, H]; rows after the last are zeros."""
        metadata = get_forward_context().attn_metadata
        own = metadata.get(LAYER) if isinstance(metadata, dict) else None
        if own is None:  # vLLM measures memory
            return self.how.advance(base, ids[None], 0, {})[0][0]
        starts = own.query_start_loc.tolist()
        lengths, blocks = own.seq_lens.tolist(), own.state_indices_tensor.tolist()
        parts: list[torch.Tensor] = []
        for start, end, length, block in zip(starts, starts[1:], lengths, blocks, strict=False):
            parts += self._go_on(base, ids[start:end], length - (end - start), block)
        rows = torch.cat(parts)
        return nn.functional.pad(rows, (0, 0, 0, ids.shape[0] - rows.shape[0]))

    def _go_on(
        self, base: nn.Module, ids: torch.Tensor, seen: int, block: int
    ) -> Iterator[torch.Tensor]:
        """One request by these tokens, after `seen` others."""
        caches = self.kept.pop(block, {}) if seen else {}
        if seen and not caches:
            raise ValueError(f"the cache of a request is gone after {seen} tokens")
        step = len(ids) if self.how.several or not seen else 1
        for at in range(0, len(ids), max(step, 1)):
            rows, caches = self.how.advance(base, ids[None, at : at + step], seen + at, caches)
            yield rows[0]
        self.kept[block] = caches  # the last used is the last
        while len(self.kept) > 2 * self.at_once:  # of requests that have ended
            self.kept.popitem(last=False)


def host_requests(model: Any, alone: Alone) -> Requests:
    """Make the host's model run its requests alone."""
    config = model.vllm_config
    longest = int(model.model_config.max_model_len)
    made = Requests(
        alone,
        at_once=int(config.scheduler_config.max_num_seqs),
        longest=longest,
        size=size_of_request(alone, model.proved.port, longest),
    )
    model.compilation_config.static_forward_context[LAYER] = made
    return made


def check_settings(config: Any, where: str) -> None:
    """Refuse what takes the tokens of a step, or a cache, for vLLM's.

    Raises:
        HostError: with the option to leave out.
    """
    parallel = config.parallel_config
    asked = {
        "--tensor-parallel-size": parallel.tensor_parallel_size > 1,
        "--pipeline-parallel-size": parallel.pipeline_parallel_size > 1,
        "--data-parallel-size": parallel.data_parallel_size > 1,
        "--enable-lora": config.lora_config is not None,
        "--speculative-config": config.speculative_config is not None,
        "--kv-transfer-config": config.kv_transfer_config is not None,
    }
    for option, given in asked.items():
        if given:
            what = f"AP411: `{option}` is not for a model whose requests run alone"
            raise HostError(what, where, f"vllm serve {where}, without {option}")


def size_of_request(how: Alone, port: Any, length: int) -> int | None:
    """Bytes of the caches of a request of so many tokens, from two runs on meta; None where it does not run there."""
    if how.again:
        return 8 * length
    base = port.model.get_submodule(port.base) if port.base else port.model
    sizes = []
    for tokens in (8, 16):
        ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
        try:
            with torch.no_grad(), torch.device("meta"):
                caches = how.advance(base, ids, 0, {})[1]
        except RUN_ERRORS:  # it asks for values, or has an operation without a meta form
            return None
        found = {id(t): t.numel() * t.element_size() for t in _tensors(caches, set())}
        sizes.append(sum(found.values()))
    return max(sizes[0] + (sizes[1] - sizes[0]) * (length - 8) // 8, 1)


def _tensors(value: Any, met: set[int]) -> Iterator[torch.Tensor]:
    """All tensors a cache holds, whatever its class."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if id(value) in met:
        return
    met.add(id(value))
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    for part in parts:
        yield from _tensors(part, met)
