"""Products with float32 weights on CPUs: a kernel of our own on packed weights, in the place of vLLM's oneDNN call.

`linear.cpp` is the kernel, `weight.h` how a weight lies in memory, `build.py` compiles, checks and keeps it, and
`layers.py` puts it under vLLM's linear layers. With 8 to 32 tokens in a step, oneDNN's product reaches neither the
speed of the memory nor that of the core; with one it waits for memory, which holds the weights in fewer bytes here.
"""
