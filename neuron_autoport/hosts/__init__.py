"""What runs a rewritten model: vLLM's engine (`vllm/`)."""
