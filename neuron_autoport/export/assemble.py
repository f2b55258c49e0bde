"""Put an exported model together on the meta device: fused weights, layers, shares of the ranks, head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from neuron_autoport.export.fusing import below, keep_whole, notes_of
from neuron_autoport.export.serving import NeuronModel
from neuron_autoport.export.step import LIMIT
from neuron_autoport.hosts.neuron.attention import STATE
from neuron_autoport.hosts.neuron.buffers import persistent_to_parameters
from neuron_autoport.hosts.neuron.call import Call, LayerState
from neuron_autoport.hosts.neuron.decode_step import decode_limit, fold_head_norms
from neuron_autoport.hosts.neuron.engine import current_ranks, model_dtype
from neuron_autoport.hosts.neuron.errors import refuse
from neuron_autoport.hosts.neuron.facts import attention_limit
from neuron_autoport.hosts.neuron.head import VocabHead
from neuron_autoport.hosts.neuron.loading import Loading
from neuron_autoport.hosts.neuron.model import Parts
from neuron_autoport.hosts.neuron.options import check_options
from neuron_autoport.hosts.neuron.recipes import Part, Recipe, Share, whole
from neuron_autoport.hosts.neuron.rope import check_rope
from neuron_autoport.hosts.neuron.sampling import Sampling
from neuron_autoport.hosts.neuron.share_experts import (
    is_experts,
    share_experts,
    why_whole_experts,
)
from neuron_autoport.hosts.neuron.sharing import rank_heads, share_vocabulary
from neuron_autoport.hosts.weights.names import ModelNames


class Assembly:
    """Puts one model together on the meta device; the counterpart of the host's own."""

    def __init__(self, cls: type[NeuronModel], config: PretrainedConfig, options: Any) -> None:
        self.cls, self.options = cls, options
        self.ranks, self.dtype = current_ranks(), model_dtype(config)
        served = check_options(options, self.ranks.size, cls.__name__)
        if served.sequence_parallel:
            raise refuse(
                "an exported package has its collectives written out: no sequence parallel"
            )
        self.by_expert = served.by_expert
        self.call = Call()
        with _building(self.dtype):
            self.base = cls.backbone(config).eval()
        self._to_meta()
        check_rope(self.base, cls.__name__)
        self.recipes: dict[str, Recipe] = {}

    def make(self) -> NeuronModel:
        names = self._names()
        self._take_children()
        persistent_to_parameters(self.base)
        self._to_meta()
        layers = self._layers()
        self._share()
        head = self._head()
        for name, _ in self.base.named_parameters():
            self.recipes.setdefault(f"model.{name}", whole(f"{self.cls.prefix}.{name}"))
        loading = Loading(names, self.recipes, self.ranks, self._settle)
        sampling = Sampling.of(self.options, self.ranks)
        return self.cls(
            Parts(
                self.base, head, layers, self.call, self.ranks, sampling, loading, None, self.dtype
            )
        )

    def _to_meta(self) -> None:
        """All parameters to the meta device, in their dtype."""
        for path, module in self.base.named_modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                new = parameter.detach().to("meta")
                if self.cls.float32 and f"{path}.{name}".endswith(self.cls.float32):
                    new = new.float()
                module.register_parameter(name, nn.Parameter(new, requires_grad=False))

    def _names(self) -> ModelNames:
        """The checkpoint's tensors as upstream names them, with their shapes."""
        cls, config = self.cls, self.base.config
        fused = {
            f"{path}.{name}" if path else name
            for path, module in self.base.named_modules()
            for name in notes_of(module).recipes
            if name.endswith(("_weight", "_bias"))
        }
        tensors = {
            f"{cls.prefix}.{n}": t.to("meta")
            for n, t in self.base.state_dict().items()
            if n not in fused
        }
        for path, module in self.base.named_modules():
            for name, recipe in notes_of(module).recipes.items():
                if f"{path}.{name}" not in fused:  # a cut parameter: its whole shape
                    part = recipe.parts[0]
                    count = self.ranks.size if part.share is not None else 1
                    shape = getattr(module, name).shape
                    full = torch.empty(shape[0] * count, *shape[1:], device="meta")
                    tensors[f"{cls.prefix}.{path}.{name}"] = full
        width = config.get_text_config().hidden_size
        vocabulary = config.get_text_config().vocab_size
        tensors[f"{cls.head.module}.weight"] = torch.empty(vocabulary, width, device="meta")
        if cls.head.bias:
            tensors[f"{cls.head.module}.bias"] = torch.empty(vocabulary, device="meta")
        return ModelNames(cls.prefix, config, tensors, dict(cls.tied), _conversions(cls))

    def _take_children(self) -> None:
        """Take out the modules that fused weights replace, and keep the recipes of those."""
        for path, module in list(self.base.named_modules()):
            notes = notes_of(module)
            for name, recipe in notes.recipes.items():
                self.recipes[f"model.{path}.{name}"] = below(recipe, f"{self.cls.prefix}.{path}")
            for child in sorted(notes.taken):
                owner, _, leaf = child.rpartition(".")
                delattr(module.get_submodule(owner), leaf)

    def _layers(self) -> list[LayerState]:
        found = sorted(
            (pair for group in self.cls.layers for pair in group.facts()), key=lambda p: p[0]
        )
        states = []
        for _, facts in found:
            module = self.base.get_submodule(facts.path)
            heads, kv_heads = facts.heads, facts.kv_heads
            if notes_of(module).shared:
                heads, kv_heads = rank_heads(heads, kv_heads, self.ranks.size)
            state = LayerState(facts, self.call, attention_limit(facts), heads, kv_heads)
            setattr(module, STATE, state)
            hidden = int(self.base.config.get_text_config().hidden_size)
            setattr(module, LIMIT, decode_limit(facts, hidden, kv_heads))
            states.append(state)
        return states

    def _share(self) -> None:
        """What every model shares in the same way: experts and vocabulary."""
        ranks = self.ranks.size
        if ranks == 1:
            return
        for path, module in self.base.named_modules():
            if not is_experts(module) or not notes_of(module).shared:
                continue
            reason = why_whole_experts(module, ranks, self.by_expert)
            if reason is not None and self.by_expert:
                raise refuse(f"expert parallel: {path}: {reason}", self.cls.__name__)
            if reason is not None:
                keep_whole(module)
                continue
            places = (f"model.{path}", f"{self.cls.prefix}.{path}")
            share_experts(
                module, places, ranks, self.call if self.by_expert else None, self.recipes
            )
        embedding = self.base.get_submodule(self.cls.embedding)
        assert isinstance(embedding, nn.Embedding)
        rows = share_vocabulary(embedding, self.call, self.ranks)
        name = f"{self.cls.embedding}.weight"
        part = Part(f"{self.cls.prefix}.{name}", share=Share(0, rows))
        self.recipes[f"model.{name}"] = Recipe((part,))

    def _head(self) -> VocabHead:
        head, text = self.cls.head, self.base.config.get_text_config()
        made = VocabHead(head, text.vocab_size, text.hidden_size, head.bias, self.dtype, self.ranks)
        share = Share(0, made.rows) if self.ranks.size > 1 else None
        for name in ("weight", "bias") if head.bias else ("weight",):
            part = Part(f"{head.module}.{name}", share=share)
            self.recipes[f"lm_head.{name}"] = Recipe((part,))
        return made

    def _settle(self) -> None:
        """What follows from weights once they have their values."""
        for module in self.base.modules():
            if (norms := notes_of(module).norms) is not None:
                fold_head_norms(module, *norms)


class _EmptyOnMeta(TorchFunctionMode):
    """`torch.empty` makes meta tensors: weights cost nothing while buffers get their values."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty and given.get("device") is None:
            given["device"] = "meta"
        return func(*args, **given)


@contextmanager
def _building(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.no_grad(), torch.device("cpu"), _EmptyOnMeta():
            yield
    finally:
        torch.set_default_dtype(before)


def _conversions(cls: type[NeuronModel]) -> list[Any]:
    """How transformers renames, merges and splits this model's checkpoint tensors."""
    found: list[Any] = []
    for name in cls.conversions:
        found += get_checkpoint_conversion_mapping(name) or []
    return [*found, *(get_checkpoint_conversion_mapping("legacy") or [])]
