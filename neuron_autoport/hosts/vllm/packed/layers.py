"""vLLM's linear layers on packed weights.

vLLM asks the `quant_method` of a layer to bring its loaded weight into the form it is run in; on CPUs its own method
for weights as they are packs them for oneDNN. Ours packs them for our kernel, where that is made for them; else vLLM
packs them, and its product is called as a function (`operations.onednn`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm._custom_ops import CPUDNNLGEMMHandler
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)
from vllm.platforms import current_platform

from neuron_autoport.hosts.vllm.layers import GATED, IS_GATED
from neuron_autoport.hosts.vllm.operations import onednn
from neuron_autoport.hosts.vllm.packed.build import (
    DEPTH,
    GELU_TANH,
    NO_ACT,
    SILU,
    Kernel,
    NoKernel,
    kernel,
)
from neuron_autoport.nf.enums import ActFnType

_ACT_CODES = {
    ActFnType.SiLU: SILU,
    ActFnType.Swish: SILU,  # as in `NF.mlp`
    ActFnType.GELU_Tanh_Approx: GELU_TANH,
}
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

logger = init_logger("vllm.neuron_autoport")  # below vLLM's root, so that its lines are shown


class HostedLinear(UnquantizedLinearMethod):
    """x Wᵀ + b of a linear layer, as a function of x; the packed weight takes the place of W."""

    supports_pre_processed_weights = False

    def __init__(self, made: Kernel | None) -> None:
        super().__init__()
        self.kernel = made

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack the weight for our kernel, if it fits and vLLM has no plan of its own for the layer."""
        planned = getattr(layer, "_cpu_skip_gemm_dispatch", False)
        if self.kernel is not None and fits(layer.weight, self.kernel) and not planned:
            if _in_halves(layer):
                _pack_halves(self.kernel, layer)
            else:
                layer.cpu_linear = _product(self.kernel, layer.weight)
            layer.weight = nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
        else:
            super().process_weights_after_loading(layer)
            if hasattr(
                layer, "cpu_linear"
            ):  # not of a convolution's weight, which vLLM leaves to others
                layer.cpu_linear = _as_function(layer.cpu_linear)


class PackedHead(UnquantizedEmbeddingMethod):
    """x Wᵀ + b of the last linear map; W stays, an embedding may read it too. It is never compiled."""

    supports_pre_processed_weights = False

    def __init__(self, made: Kernel | None) -> None:
        self.kernel = made

    def process_weights_after_loading(self, layer: Any) -> None:
        """Pack a copy of the weight."""
        if self.kernel is not None and fits(layer.weight, self.kernel):
            layer.cpu_linear = _product(self.kernel, layer.weight)
        else:
            super().process_weights_after_loading(layer)


def usable_kernel(dtype: torch.dtype) -> Kernel | None:
    """The kernel for the linear layers of a model of this dtype, or None: vLLM's own products. The log says why."""
    if dtype != torch.float32:
        return None
    try:
        return kernel()
    except NoKernel as error:
        logger.info_once(
            f"autoport: linear layers run on vLLM's products, not on packed weights: {error}"
        )
        return None


def pack_linears(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the layers of a hosted model that are linear and not quantized pack their weights after loading."""
    if not current_platform.is_cpu() or current_platform.is_zen_cpu():
        return
    made = usable_kernel(dtype)
    if made is not None:
        logger.info_once(
            f"autoport: linear layers run on packed weights ({made.level.architecture})"
        )
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if type(method) is UnquantizedLinearMethod:
            layer.quant_method = HostedLinear(made)
        elif type(method) is UnquantizedEmbeddingMethod and isinstance(layer, ParallelLMHead):
            layer.quant_method = PackedHead(made)


def fits(weight: Tensor, made: Kernel) -> bool:
    """Is the kernel made for this weight? A few outputs would be mostly filling."""
    plain = weight.dim() == 2 and weight.dtype == torch.float32 and not weight.is_meta
    return plain and weight.shape[0] >= 2 * made.level.panel and weight.shape[1] > 0


def _product(made: Kernel, weight: Tensor) -> Product:
    """What vLLM calls in the place of F.linear."""
    handle, outputs, run = made.pack(weight), weight.shape[0], made.run

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return run(x, handle, outputs, bias)

    return product


def _in_halves(layer: Any) -> bool:
    """Are the outputs two halves, gate and up of an MLP, each sum of which the kernel makes in one piece?"""
    if not getattr(layer, IS_GATED, False) or layer.skip_bias_add or layer.gather_output:
        return False
    first, second = layer.output_partition_sizes
    return bool(first == second) and layer.weight.shape[1] <= DEPTH


def _pack_halves(made: Kernel, layer: Any) -> None:
    handle, outputs, run = made.pack_halves(layer.weight), len(layer.weight), made.run_halves

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return run(x, handle, outputs, bias, NO_ACT)

    def gated(x: Tensor, act_fn: ActFnType) -> Tensor | None:
        code = _ACT_CODES.get(act_fn)
        return None if code is None else run(x, handle, outputs, layer.bias, code)

    layer.cpu_linear = product
    setattr(layer, GATED, gated)


def _as_function(product: Product) -> Product:
    """The same, if it is vLLM's call of oneDNN, in a form that torch.compile keeps in its place."""
    cells = (cell.cell_contents for cell in getattr(product, "__closure__", None) or ())
    handlers = [held for held in cells if isinstance(held, CPUDNNLGEMMHandler)]
    if not handlers:
        return product
    handler = handlers[0]  # it frees the weight when it goes

    def function(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return onednn(x, handler.handler_tensor, handler.n, bias)

    return function
