"""What runs a rewritten model: the engine of vLLM (`vllm/`), the Neuron plugin's runner (`neuron/`)."""
