"""The model class vLLM builds: its Transformers backend, with our rewrites where its fusers sit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.models.transformers.base import Base
from vllm.model_executor.models.transformers.causal import CausalMixin
from vllm.model_executor.models.transformers.moe import MoEMixin

from neuron_autoport.hosts.vllm import turns
from neuron_autoport.hosts.vllm.alone import Alone, Requests, check_settings, host_requests
from neuron_autoport.hosts.vllm.attention import INTERFACE, make_attention
from neuron_autoport.hosts.vllm.attention_facts import Facts, read_attention
from neuron_autoport.hosts.vllm.building import fit_backend, keep_own_names
from neuron_autoport.hosts.vllm.checkpoint import Checkpoint
from neuron_autoport.hosts.vllm.compat import check_model, check_version, with_fusers
from neuron_autoport.hosts.vllm.compiled import compile_decoder, keep_tables, share_code
from neuron_autoport.hosts.vllm.fusers import PlannedFusers, RewriteModule
from neuron_autoport.hosts.vllm.head import apply_head, as_saved, before_head, beside_base, renamed
from neuron_autoport.hosts.vllm.loading import Loading, Weights
from neuron_autoport.hosts.vllm.masks import Mask
from neuron_autoport.hosts.vllm.moe import replace_experts
from neuron_autoport.hosts.vllm.packed.layers import pack_linears
from neuron_autoport.hosts.vllm.parallel import (
    Sharing,
    below,
    columns_shared,
    gather_around,
    pipeline_plan,
    share_linears,
    sharing_of,
)
from neuron_autoport.hosts.vllm.places import step
from neuron_autoport.hosts.vllm.reading import read_model
from neuron_autoport.hosts.vllm.states import State, host_states, states_line, states_of
from neuron_autoport.hosts.vllm.written_out.interface import asks_interface
from neuron_autoport.models.build import meta_model
from neuron_autoport.pipeline import ProvedPort
from neuron_autoport.port import port_model
from neuron_autoport.report.summary import own_rule_lines, refusal_lines, total_line
from neuron_autoport.rewrite.plan import ClassPlan

logger = init_logger("vllm.neuron_autoport")  # below vLLM's root, so that its lines are shown


class NeuronTransformersMixin(Base):
    """Traces, matches and proves the model, then lets vLLM's backend build it with the rewrites."""

    proved: ProvedPort
    masks: dict[tuple[str, str | None], Mask]
    small_config: Any
    head_bias: bool
    continued: dict[str, bool]
    head_names: dict[str, str]
    prepare: Callable[[nn.Module, str | None], None] | None
    alone: Alone | None
    requests: Requests
    with_states: ClassVar[bool] = False
    supports_mrope: ClassVar[Literal[True]] = True

    def _patch_config(self) -> None:
        # Before vLLM's backend changes the configuration and wraps the decoder class for compilation:
        # the small models of the proof and of the masks must run as transformers has them.
        check_version()
        found = read_model(check_model(self.model_config))
        fit_backend(self.config, found, str(self.model_config.model))
        self.proved, self.prepare = found.proved, found.source.prepare
        self.masks, self.small_config = found.masks, found.small_config
        self.continued, self.head_names, self.head_bias = found.continued, {}, False
        self.alone = found.alone
        if self.alone is not None:
            check_settings(self.vllm_config, str(self.model_config.model))
        super()._patch_config()
        # Some classes choose their layers by it, and know `eager`; `prepare` sets what they are to ask for.
        as_written = self.prepare is not None or self.alone is not None
        self.text_config._attn_implementation = "eager" if as_written else INTERFACE

    def _decorate_for_torch_compile(self) -> None:
        """Later, when the classes are those of the rewrite: `compiled.py`."""

    def recursive_replace(self) -> None:
        states = host_states(self) if self.alone is None else {}
        plain = self.alone is not None and self.alone.plain
        hosted = replace_experts(self)
        self._share(states)
        rewrites = [] if plain else self._rewrites()

        def fusers(model: Any, config: Any) -> PlannedFusers:
            return PlannedFusers(rewrites)

        own = ("",) if plain else states
        kept = frozenset(map(id, self._kept_linears(own)))
        with_fusers(Base.recursive_replace, fusers, kept)(self)
        for path, sharing in self.sharing.items():
            for child in sharing.gathers:
                gather_around(self.model.get_submodule(f"{path}.{child}" if path else child))
        for block in hosted:
            (logger.info if block.reason is None else logger.warning)("autoport: %s", block.line())
        for line in refusal_lines(self.proved):
            logger.warning("autoport: %s", line)
        for line in own_rule_lines(self.proved):
            logger.info("autoport: %s", line)
        if states:
            logger.info("autoport: %s", states_line(states))
        if not plain:
            logger.info("autoport: %s", total_line(self.proved))
        if not self.with_states and self.alone is None:
            keep_tables(self._parts())
            compile_decoder(self, self.proved)

    def _create_attention_instances(self, prefix: str = "") -> None:
        if self.alone is not None:
            self.requests = host_requests(self, self.alone)
            logger.warning("autoport: %s", self.alone.line(self.requests.size))
            return
        make_attention(self, self.masks, self.small_config)
        self.turns = turns.turns_of(self.model)
        if not self.with_states and not self.turns:  # a turn is written into the code of its call
            share_code(self)

    def _create_hf_to_vllm_mapper(self) -> None:
        if self.prepare is not None:  # the model was built just now
            self.prepare(self.model, INTERFACE)
        self.checkpoint = Checkpoint(self.model, str(self.model_config.model))
        self.loading = Loading(self.model)
        super()._create_hf_to_vllm_mapper()
        keep_own_names(self, self.checkpoint)

    def load_weights(self, weights: Weights) -> set[str]:
        """As vLLM's backend does, but of a checkpoint that lacks nothing and fits."""
        if self.quant_config is not None:  # its tensors are not transformers'
            return self._load_renamed(weights)
        whole = not self.parallel_config.enable_ep_weight_filter
        loaded = self.checkpoint.load(self._load_renamed, weights, all_experts=whole)
        beside = beside_base((n for n, _ in self.named_parameters()), self.head_bias)
        self.checkpoint.check_head(*(as_saved(x, self.head_names) for x in (beside, loaded)))
        return loaded

    def _load_renamed(self, weights: Weights) -> set[str]:
        """Tensors in the form and by the names the host has for them, into vLLM's layers."""
        names, extra = self.head_names, self.checkpoint.extra
        return super().load_weights(renamed(self.loading(weights), names, self.head_bias, extra))

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: Any
    ) -> tuple[torch.Tensor, int]:
        """Text has the same position on every axis of a rotary embedding with several."""
        return torch.arange(len(input_tokens)).expand(3, -1), 0

    def forward(self, input_ids: Any, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's backend; the model itself spreads positions over its axes, as it does alone."""
        if self.alone is not None:
            return self.requests.run(self.model, input_ids)
        one = positions[0] if positions.dim() == 2 else positions
        turns.start(self.turns)
        with step(one.flatten()):
            made = super().forward(input_ids, one, *args, **kwargs)
        turns.check_all_taken(self.turns)
        return made

    def compute_logits(self, hidden_states: torch.Tensor) -> Any:
        return super().compute_logits(before_head(self, hidden_states))

    def pipeline_parallel(self) -> None:
        """With the parts in the order they run, where the model declares no plan."""
        base = self.proved.port.where.get(self.proved.port.base)
        if not self.model.supports_pp_plan and base is not None:
            self.model._pp_plan = pipeline_plan(base.trace, self.model)
        super().pipeline_parallel()

    def _parts(self) -> Iterator[tuple[str, ClassPlan, nn.Module]]:
        """Path below the base model, plan and module of every planned class, as transformers made it."""
        port = self.proved.port
        inside = f"{port.base}." if port.base else ""
        modules: dict[str, nn.Module] = dict(self.model.named_modules())
        for path, plan in port.where.items():
            module = modules.get(path.removeprefix(inside)) if path.startswith(inside) else None
            if module is not None and type(module) is plan.trace.module_class:
                yield path.removeprefix(inside), plan, module

    def _kept_linears(self, states: Iterable[str]) -> list[nn.Module]:
        """Linear modules that stay transformers': mixers hand them rows in any layout, others read their weight."""
        if self.quant_config is not None:
            return []
        found = [m for path in states for m in self.model.get_submodule(path).modules()]
        for _, plan, module in self._parts():
            read = [op.target for op in plan.graph.ops if op.name == "param" and op.target]
            owners = {name.rpartition(".")[0] for name in read} - {""}
            found += [module.get_submodule(owner) for owner in owners]
        return [m for m in found if isinstance(m, nn.Linear)]

    def _share(self, states: Iterable[str]) -> None:
        """How the ranks share each class; one rank has everything."""
        ranks = int(self.parallel_config.tensor_parallel_size)
        self.sharing: dict[str, Sharing] = {}
        styles: dict[str, str] = {}
        columnwise = columns_shared(self.model.tp_plan or {})
        for path, plan, module in self._parts():
            if ranks == 1:
                self.sharing[path] = Sharing(None, by_heads=True)
                continue
            sharing = sharing_of(plan, module, below(path, columnwise))
            kept = [x.kv_heads for x in read_attention(plan) if isinstance(x, Facts)]
            if any(path == s or path.startswith(f"{s}.") for s in states):
                sharing = Sharing("it keeps the state of all heads")
            elif asks_interface(module):
                sharing = Sharing("its heads are counted in its own code")
            elif sharing.gathers and (heads := [h for h in kept if h % ranks]):
                sharing = Sharing(f"{heads[0]} key/value heads are normed together")
            self.sharing[path] = sharing
            linears = share_linears(plan, module, sharing)
            styles |= {rf"{re.escape(f'{path}.{n}')}$": style for n, style in linears.items()}
            if sharing.whole is not None:
                what = f"{type(module).__name__}: every rank computes it whole: {sharing.whole}"
                logger.warning_once("autoport: %s", what)
        self.model._tp_plan = styles | (self.model.tp_plan or {})

    def _rewrites(self) -> list[tuple[nn.Module, RewriteModule]]:
        """Modules of `self.model`, each with our rewrite of it."""
        made = self.proved.generated
        columnwise = columns_shared(self.model.tp_plan or {})
        found: list[tuple[nn.Module, RewriteModule]] = []
        for path, plan, module in self._parts():
            if plan in made.classes:
                shared = below(path, columnwise)
                whole = self.sharing[path].whole is not None
                found.append((module, RewriteModule(plan, made.classes[plan], shared, whole)))
        return found


class NeuronTransformersForCausalLM(NeuronTransformersMixin, CausalMixin):
    """A dense causal language model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)
        pack_linears(self, self.model_config.dtype)


class NeuronTransformersMoEForCausalLM(MoEMixin, NeuronTransformersMixin, CausalMixin):
    """One with mixture-of-experts blocks: `moe.py` puts vLLM's layers in, in place of `MoEMixin`."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)
        pack_linears(self, self.model_config.dtype)

    def recursive_replace(self) -> None:
        super(MoEMixin, self).recursive_replace()

    def update_physical_experts_metadata(
        self, num_physical_experts: int, num_local_physical_experts: int
    ) -> None:
        """As vLLM's mixin does, whatever the blocks call their experts."""
        self.num_physical_experts = num_physical_experts
        self.num_local_physical_experts = num_local_physical_experts
        self.num_redundant_experts = num_physical_experts - self.num_logical_experts
        for layer in self.moe_layers:
            layer.update_expert_map()


class _WithStates(NeuronTransformersMixin):
    """One with recurrent state beside attention, or in its place; it runs as it is, not compiled."""

    with_states = True
    is_hybrid = True
    has_inner_state = True

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> tuple[tuple[int, ...], ...]:
        """Of the mixer with the largest state, of one request."""
        return tuple(s.shape for s in _largest_state(vllm_config))

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> tuple[torch.dtype, ...]:
        return tuple(s.dtype for s in _largest_state(vllm_config))


def _largest_state(vllm_config: Any) -> tuple[State, ...]:
    config = vllm_config.model_config
    source = check_model(config)
    port = port_model(source, ())
    model = meta_model(source, dtype=config.dtype)
    base = model.get_submodule(port.base) if port.base else model
    found = states_of(base, port, config.hf_text_config)
    return max(found.values(), key=lambda s: sum(x.bytes for x in s), default=())


class NeuronTransformersHybridForCausalLM(_WithStates, NeuronTransformersForCausalLM):
    """A dense model with recurrent state."""


class NeuronTransformersMoEHybridForCausalLM(_WithStates, NeuronTransformersMoEForCausalLM):
    """A mixture-of-experts model with recurrent state."""
