"""The Neuron runner as host: a ported model behind the vLLM Neuron plugin's model contract.

`model.py` is the class the runner drives; `build.py` makes it from a configuration; `probe.py` reads
what each attention layer does; `attention.py` does it on the paged cache; `moe_form.py` reads how a mixture of
experts is called in NF, `moe.py` calls it; `sharing.py` and `sequence.py` put the ranks' parts together;
`recipes.py` and `lazy.py` load checkpoints; `plan.py` says what runs in a kernel and what does not, and why.
Nothing here needs the plugin to be installed: `engine.py` holds what is asked of it, with the same things of our own.
"""

ARCHITECTURE = "NeuronTransformersForCausalLM"
