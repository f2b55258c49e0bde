"""The model class vLLM builds: its Transformers backend, with our rewrites where its fusers sit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.models.transformers.base import Base
from vllm.model_executor.models.transformers.causal import CausalMixin
from vllm.model_executor.models.transformers.moe import MoEMixin

from neuron_autoport.hosts.vllm.attention import check_attention
from neuron_autoport.hosts.vllm.compat import check_model, check_version, with_fusers
from neuron_autoport.hosts.vllm.fusers import PlannedFusers, RewriteModule
from neuron_autoport.hosts.vllm.head import apply_head
from neuron_autoport.hosts.vllm.moe import replace_experts
from neuron_autoport.pipeline import ProvedPort, proved_port
from neuron_autoport.report.summary import own_rule_lines, refusal_lines, total_line

logger = init_logger("vllm.neuron_autoport")  # below vLLM's root, so that its lines are shown


class NeuronTransformersMixin(Base):
    """Traces, matches and proves the model, then lets vLLM's backend build it with the rewrites."""

    proved: ProvedPort

    def _decorate_for_torch_compile(self) -> None:
        # Before vLLM's backend wraps the decoder class for compilation: the small model of the
        # proof is of the same class and must run as transformers has it.
        check_version()
        self.proved = proved_port(check_model(self.model_config))
        super()._decorate_for_torch_compile()

    def recursive_replace(self) -> None:
        hosted = replace_experts(self)
        rewrites = self._rewrites()
        fusers = lambda model, config: PlannedFusers(rewrites, config)  # noqa: E731
        with_fusers(Base.recursive_replace, fusers)(self)  # type: ignore[arg-type]
        for block in hosted:
            (logger.info if block.reason is None else logger.warning)("autoport: %s", block.line())
        for line in refusal_lines(self.proved):
            logger.warning("autoport: %s", line)
        for line in own_rule_lines(self.proved):
            logger.info("autoport: %s", line)
        logger.info("autoport: %s", total_line(self.proved))

    def _create_attention_instances(self, prefix: str = "") -> None:
        super()._create_attention_instances(prefix)
        check_attention(self, self.proved)

    def _rewrites(self) -> dict[int, RewriteModule]:
        """Our rewrite of each module of `self.model`, found by its path below the base model."""
        found: dict[int, RewriteModule] = {}
        port, made = self.proved.port, self.proved.generated
        inside = f"{port.base}." if port.base else ""
        modules: dict[str, nn.Module] = dict(self.model.named_modules())
        columnwise = columns_shared(self.model.tp_plan or {})
        for path, plan in port.where.items():
            module = modules.get(path.removeprefix(inside)) if path.startswith(inside) else None
            if plan in made.classes and type(module) is plan.trace.module_class:
                prefix = path.removeprefix(inside)
                shared = lambda child, at=prefix: columnwise(f"{at}.{child}")  # noqa: E731
                found[id(module)] = RewriteModule(plan, made.classes[plan], shared)
        return found


def columns_shared(tp_plan: dict[str, str]) -> Callable[[str], bool]:
    """Does the model's parallel plan share the columns of the linear module at a path?"""
    patterns = [
        re.compile(re.escape(path).replace(r"\*", "[^.]+"))
        for path, style in tp_plan.items()
        if style.startswith("colwise")
    ]
    return lambda path: any(p.fullmatch(path) for p in patterns)


class NeuronTransformersForCausalLM(NeuronTransformersMixin, CausalMixin):
    """A dense causal language model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)


class NeuronTransformersMoEForCausalLM(MoEMixin, NeuronTransformersMixin, CausalMixin):
    """One with mixture-of-experts blocks: `moe.py` puts vLLM's layers in, in place of `MoEMixin`."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)

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
