"""What is below a module, each with its dotted path, in one pass over it."""

from __future__ import annotations

from torch import nn


def modules_in(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """As `named_modules`: `root` under the empty path, then all below it; one in two places by the first of them."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    todo = [("", root)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        if module._modules:
            before = f"{path}." if path else ""
            below = [(before + name, m) for name, m in module._modules.items() if m is not None]
            todo += reversed(below)
    return found


def names_below(root: nn.Module) -> tuple[dict[int, str], dict[int, str]]:
    """Paths of the modules below `root`, and of their parameters and buffers and its own, by identity."""
    modules = modules_in(root)
    paths = {id(module): path for path, module in modules[1:]}
    states: dict[int, str] = {}
    for members in ("_parameters", "_buffers"):
        for path, module in modules:
            for name, tensor in getattr(module, members).items():
                if tensor is not None:
                    states.setdefault(id(tensor), f"{path}.{name}" if path else name)
    return paths, states


def module_at(root: nn.Module, path: str) -> nn.Module:
    """As `get_submodule`."""
    found = root._modules.get(path)
    return found if found is not None else root.get_submodule(path)
