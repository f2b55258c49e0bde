"""How a generated file gets at the module of an original: an import where one can be written, else by name."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Iterable

from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

# Stands before what `by_name` gives.
BY_NAME = "from importlib import import_module"


def comes_with_model(cls: type) -> bool:
    """Is this class of the code that comes with a model, which transformers runs only when it may?"""
    return cls.__module__.partition(".")[0] == TRANSFORMERS_DYNAMIC_MODULE_NAME


def ordinary(module: str) -> bool:
    """Can an `import` statement name this module?

    Not that of code that comes with a model: transformers loads it under a dotted name with a digest in it,
    which may begin with a digit, and not all packages above it are there as modules.
    """
    parts = module.split(".")
    if parts[0] == TRANSFORMERS_DYNAMIC_MODULE_NAME:
        return False
    named = all(p.isidentifier() and not keyword.iskeyword(p) for p in parts)
    return named and all(".".join(parts[:n]) in sys.modules for n in range(1, len(parts)))


def by_name(module: str, alias: str, names: Iterable[str] = ()) -> list[str]:
    """Lines that take a module by its name, and from it what is read of it.

    It is in `sys.modules` when they run: a generated file is imported once the model is built, in every process.
    """
    return [f'{alias} = import_module("{module}")', *(f"{n} = {alias}.{n}" for n in sorted(names))]
