"""neuron-autoport: Hugging Face models, rewritten and proved for the vLLM Neuron plugin's fused functions."""

__version__ = "0.1.0"
