"""Registers: integers a program has at run time only (`nisa.register_alloc` and friends)."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

from tests.nki_sim.errors import refuse


class Register:
    """A scalar register. Instructions use its value; the program, which is built before, cannot."""

    def __init__(self, value: int | None = None) -> None:
        self.value = value

    def _asked(self) -> NoReturn:
        refuse("register-in-python", "Python code asks for a register's value")

    def __index__(self) -> int:
        self._asked()

    def __int__(self) -> int:
        self._asked()

    def __bool__(self) -> bool:
        self._asked()


def plain(value: Any) -> int:
    """An index as an integer: a number, or a register's value when an instruction runs."""
    if isinstance(value, Register):
        if value.value is None:
            refuse("unwritten-read", "a register without a value is read")
        return value.value
    try:
        return operator.index(value)
    except TypeError:
        refuse("operand-kind", f"{value!r} is used as an index")
