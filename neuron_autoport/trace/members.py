"""What is below a module, each with its dotted path, in one pass over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from neuron_autoport.trace.pictures import class_of


class Names:
    """Paths of a module and of those below it, and of their parameters and buffers, by identity.

    One in several places has the path that torch gives it: of modules the first, of states the first of a
    parameter, else of a buffer. paths: in the order of `modules`, which is that of `named_modules`.
    tree: is no module in two places? current: False once something was registered while `watched`.
    """

    def __init__(self, root: nn.Module) -> None:
        self.modules: list[nn.Module] = [root]
        self.paths: dict[int, str] = {id(root): ""}
        self.tree, self.current = True, True
        self._parameters: dict[str, dict[int, str]] = {}  # by prefix, see `_parameters_below`
        self._buffers: dict[int, list[str]] = {}
        self._visit(root, "")

    def _visit(self, module: nn.Module, before: str) -> None:
        own, paths = module.__dict__, self.paths
        for name, buffer in own["_buffers"].items():
            if buffer is not None:
                self._buffers.setdefault(id(buffer), []).append(before + name)
        for name, child in own["_modules"].items():
            if child is None:
                continue
            if id(child) in paths:
                self.tree = False
                continue
            path = paths[id(child)] = before + name
            self.modules.append(child)
            below = child.__dict__
            if below["_modules"] or below["_buffers"]:
                self._visit(child, f"{path}.")

    def path_of(self, module: nn.Module, prefix: str = "") -> str | None:
        """Path of a module below the one whose paths begin with `prefix`; None if it is not there."""
        path = self.paths.get(id(module))
        return path[len(prefix) :] if path and path.startswith(prefix) else None

    def state_of(self, tensor: torch.Tensor, prefix: str = "") -> str | None:
        """The same of a parameter or buffer."""
        if isinstance(tensor, nn.Parameter):
            path = self._parameters_below(prefix).get(id(tensor))
            if path is not None:
                return path
        places = (p for p in self._buffers.get(id(tensor), ()) if p.startswith(prefix))
        path = next(places, None)
        return path[len(prefix) :] if path else None

    def _parameters_below(self, prefix: str) -> dict[int, str]:
        """Found when first asked for, and only there: most are asked for by the layer that holds them."""
        if prefix not in self._parameters:
            start = module_at(self.modules[0], prefix[:-1]) if prefix else self.modules[0]
            found: dict[int, str] = {}
            for path, module in modules_in(start) if start is not None else ():
                for name, tensor in module.__dict__["_parameters"].items():
                    if tensor is not None:
                        found.setdefault(id(tensor), f"{path}.{name}" if path else name)
            self._parameters[prefix] = found
        return self._parameters[prefix]

    def repeated(self, cls: type[nn.Module]) -> bool:
        """May several modules be of this class? Of one of which there is a single module, nothing is traced twice."""
        those = (m for m in self.modules if class_of(m) is cls)
        return not self.current or next(those, None) is None or next(those, None) is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While open, anything that one of the modules registers makes these names old."""

        def registered(owner: nn.Module, *_: Any) -> None:
            if id(owner) in self.paths:  # `layers[:n]` is a new list of the same modules
                self.current = False

        hooks = (
            torch_module.register_module_parameter_registration_hook(registered),
            torch_module.register_module_buffer_registration_hook(registered),
            torch_module.register_module_module_registration_hook(registered),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def modules_in(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """As `named_modules`: `root` under the empty path, then all below it; one in two places by the first of them."""
    names = Names(root)
    return list(zip(names.paths.values(), names.modules, strict=True))


def module_at(root: nn.Module, path: str) -> nn.Module | None:
    """As `get_submodule`, but None if there is nothing."""
    found: nn.Module | None = root
    for name in path.split("."):
        found = found._modules.get(name) if found is not None else None
    return found
