"""Activations that write their result over their input, as `nn.SiLU(inplace=True)` does.

A child module's over a value that nothing else can see is the plain function. Elsewhere the operation has the
function's name, but stays one in place: a rule finds it, and its rewrite is refused. So does that of a call of
torch, whose result and input are one tensor: a graph cannot tell by which name it is read later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from neuron_autoport.trace.elementwise import ACTIVATIONS, FUNCTIONS
from neuron_autoport.trace.frame import after_write
from neuron_autoport.trace.ops import Op

if TYPE_CHECKING:
    from neuron_autoport.trace.canonical import Builder

# Operations whose result lies in memory of its own.
_NEW = FUNCTIONS | {"linear", "matmul"}


def settle(b: Builder, node: fx.Node, made: Op) -> Op:
    """The activation of a child's call, a plain function if it writes over what is read nowhere else."""
    if made.inplace and _is_unseen(b, node):
        made.inplace, made.written = False, ()
    return made


def after(b: Builder, node: fx.Node) -> Op | None:
    """What `node` stands for, if it is what a value has become by an activation in place: the result of that."""
    if node.target is not after_write:
        return None
    old, call = (b.operand(a) for a in node.args)
    known = isinstance(call, Op) and call.name in ACTIVATIONS and call.inputs == (old,)
    return call if known else None


def _is_unseen(b: Builder, node: fx.Node) -> bool:
    written = node.meta["written"]
    if len(written) != 1:
        return False
    (old,) = written
    others = [u for u in old.users if u is not node and (u.target is not after_write or u.users)]
    value = b.of[old]
    return not others and isinstance(value, Op) and _is_new(value)


def _is_new(value: Op) -> bool:
    from neuron_autoport.trace.facts import linear_of  # reads canonical graphs by itself

    if value.inplace:
        return False
    is_map = value.name == "module" and linear_of(value.trace) is not None
    return is_map or value.name in _NEW
