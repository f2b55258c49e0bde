"""The model class vLLM builds: its Transformers backend, with our rewrites where its fusers sit."""

from __future__ import annotations

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
from neuron_autoport.pipeline import ProvedPort, proved_port
from neuron_autoport.report.summary import refusal_lines, total_line

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
        rewrites = self._rewrites()
        fusers = lambda model, config: PlannedFusers(rewrites, config)  # noqa: E731
        with_fusers(Base.recursive_replace, fusers)(self)  # type: ignore[arg-type]
        for line in refusal_lines(self.proved):
            logger.warning("autoport: %s", line)
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
        for path, plan in port.where.items():
            module = modules.get(path.removeprefix(inside)) if path.startswith(inside) else None
            if plan in made.classes and type(module) is plan.trace.module_class:
                found[id(module)] = RewriteModule(plan, made.classes[plan])
        return found


class NeuronTransformersForCausalLM(NeuronTransformersMixin, CausalMixin):
    """A dense causal language model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)


class NeuronTransformersMoEForCausalLM(MoEMixin, NeuronTransformersMixin, CausalMixin):
    """One with mixture-of-experts blocks: vLLM's backend serves the experts."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        apply_head(self, self.proved)
