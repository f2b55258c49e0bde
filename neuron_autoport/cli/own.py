"""What a command line says of one module of the user's own: `FILE.py:CLASS` and how to call it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_autoport.errors import ModelError

if TYPE_CHECKING:
    from neuron_autoport.models.own_module import OwnModule


class DtypeName(StrEnum):
    """What a module is traced in."""

    bf16 = "bf16"
    fp16 = "fp16"
    fp32 = "fp32"


_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class OwnRequest:
    """The options that describe a module.

    command: the words of the command line before them, to be shown in errors. name: FILE.py:CLASS.
    inputs, init: as typed. more: what else the command had.
    """

    command: tuple[str, ...]
    name: str
    inputs: tuple[str, ...]
    init: str | None
    dtype: DtypeName
    trusted: bool
    more: tuple[str, ...] = ()

    @property
    def is_module(self) -> bool:
        """Is this the name of a Python file, with or without a class?"""
        return self.name.endswith(".py") or ".py:" in self.name

    def text(self, *, inputs: tuple[str, ...] | None = None, trusted: bool = True) -> str:
        """The whole command, ready to be pasted."""
        words = [*self.command]
        for given in self.inputs if inputs is None else inputs:
            words += ["--input", given]
        words += ["--init", self.init] if self.init else []
        words += ["--dtype", self.dtype.value] if self.dtype is not DtypeName.bf16 else []
        words += [*self.more, *(["--trust-remote-code"] if trusted else [])]
        return shlex.join(words)

    def rule_command(self) -> str:
        """The command that writes a rule from this module."""
        start = ("autoport", "rules", "new", "NAME", "--from", self.name)
        return replace(self, command=start, more=()).text()

    def load(self) -> OwnModule:
        """Import the module, if the user allows its file to run.

        Raises:
            ModelError: there is no such class, it may not be run, or an option is wrong.
        """
        import torch

        from neuron_autoport.models.inputs import parse_input
        from neuron_autoport.models.own_module import find_class, load_own_module, parse_init

        path, wanted = find_class(self.name)
        if not self.inputs:
            raise self.without_inputs(path, wanted)
        inputs = tuple(parse_input(text) for text in self.inputs)
        init = parse_init(self.init)
        if not self.trusted:
            what = f"This runs {path}, and that is done only when you allow it."
            raise ModelError(what, str(path), f"read the file, then: {self.text()}")
        dtype = getattr(torch, _TORCH_NAMES[self.dtype.value])
        return load_own_module(self.name, inputs=inputs, init=init, dtype=dtype)

    def without_inputs(self, path: Path, wanted: str) -> ModelError:
        """Ask for the sizes of the inputs, by the names forward gives them."""
        from neuron_autoport.models.own_module import needed_arguments

        names = needed_arguments(path, wanted)
        called = f"{wanted}.forward takes {', '.join(names)}" if names else f"of {wanted}.forward"
        what = f"The sizes of the inputs are missing: {called}."
        inputs = ("2,8,64",) * max(len(names), 1)
        return ModelError(what, str(path), self.text(inputs=inputs, trusted=self.trusted))
