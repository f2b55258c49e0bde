"""The NKI sources of our kernels; each is imported only where `nki.language` is (kernels/dispatch.py).

A module here has `KERNEL`, the `nki.jit` function, and `launch(kernel, ...)`, which brings torch tensors
into the kernel's shapes. Written for the current NKI namespace (`nki`, `nki.language`, `nki.isa`); what the
NKI compiler refuses in a kernel is kept out of them too: no `is`, no keyword-only parameters, no classes.
"""
