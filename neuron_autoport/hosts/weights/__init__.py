"""Tensors of a checkpoint, for every host: which make which tensor of the model, read only where they are needed."""
