"""NK: operations that NF does not have as a function of their own, with torch references.

    from neuron_autoport import kernels as NK

On Neuron each call runs in an NKI kernel of this package (`NK.backend()` tells), elsewhere, and outside
the kernel's limits (`NK.limits`), in the torch reference. docs/kernels.md tells how to add one.
"""

from collections.abc import Callable
from typing import Any

from neuron_autoport.kernels import outside
from neuron_autoport.kernels.act_and_mul import act_and_mul
from neuron_autoport.kernels.add_rms_norm import add_rms_norm
from neuron_autoport.kernels.dispatch import FUNCTIONS
from neuron_autoport.kernels.dispatch import backend as backend
from neuron_autoport.kernels.dispatch import nk_function as nk_function
from neuron_autoport.kernels.layer_norm import layer_norm
from neuron_autoport.kernels.limits import Limit as Limit
from neuron_autoport.kernels.qk_norm_rope import qk_norm_rope
from neuron_autoport.kernels.rms_norm import rms_norm
from neuron_autoport.kernels.rope import rope
from neuron_autoport.kernels.softcap_attention import softcap_attention

# What a rule may call, of our own; `names()` has those of other packages too.
__all__ = [
    "act_and_mul",
    "add_rms_norm",
    "layer_norm",
    "qk_norm_rope",
    "rms_norm",
    "rope",
    "softcap_attention",
]


def names() -> list[str]:
    """The functions a rule may call: our own, then those of other packages.

    Raises:
        AutoportError: a package named by the user cannot be imported.
    """
    outside.load()
    return [*__all__, *sorted(set(FUNCTIONS) - set(__all__))]


def __getattr__(name: str) -> Callable[..., Any]:
    """NK.name for a function of another package, imported when it is first asked for."""
    found = None if name.startswith("_") else outside.find(name)
    if found is None:
        raise AttributeError(f"NK has no function {name}; there are {', '.join(__all__)}")
    globals()[name] = found
    return found
