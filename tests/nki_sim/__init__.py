"""A simulator of NKI kernels for tests: NumPy on a CPU, with the device's limits as errors.

Used through `tests.nki_sim.runner`; README.md beside this file says how. Never part of the wheel.
"""
