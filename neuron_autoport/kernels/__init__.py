"""NK: operations that NF does not have as a function of their own, with torch references.

from neuron_autoport import kernels as NK
"""

from neuron_autoport.kernels.rms_norm import rms_norm

__all__ = ["rms_norm"]
