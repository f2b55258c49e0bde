"""The catalogue of kernels: NF functions, NKI library kernels and our own, searched and judged for a model."""
