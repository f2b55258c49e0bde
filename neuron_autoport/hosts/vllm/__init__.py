"""The vLLM engine as host: `vllm serve MODEL --model-impl neuron-transformers`.

`plugin.py` registers, `compat.py` and `configuration.py` hold all that depends on vLLM's internals, `model.py` is the
model class, `fusers.py` puts planned sites where vLLM's Transformers backend has its fusers, `layers.py` makes vLLM's
linear layers usable as NF weights, `attention.py`, `turns.py` and `states.py` give layers their caches, `mixing.py`,
`probe.py` and `masks.py` find what a cache cannot serve, `alone.py` serves that, `places.py` gives layers positions for
rows, `head.py` makes the logits, `reading.py` does all that comes first, `parallel.py` shares classes among ranks,
`loading.py` brings checkpoint tensors into form, `moe*.py` hosts experts.
"""

MODEL_IMPL = "neuron-transformers"
# Versions of vLLM that the two were checked with; here, so that it is read without importing torch.
CHECKED_WITH = ("0.32.0",)
