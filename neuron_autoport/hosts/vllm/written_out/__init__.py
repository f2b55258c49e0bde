"""Attention written out in a layer's forward, made a call of transformers' attention interface.

read: the class's graph, from scores to output. known: values that need neither tokens nor weights. facts: scale,
window and slopes, from those values. region: the class's source. classes: the new class. interface: all of it, for one
model. prove: against the original.
"""
