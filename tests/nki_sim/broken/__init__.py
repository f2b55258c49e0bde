"""Kernels with one fault each, and what the simulator has to say of them (test_broken_kernels.py)."""
