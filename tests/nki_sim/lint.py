"""What a simulator accepts and the NKI compiler does not, found in a kernel's source.

A simulator runs a kernel as Python; the compiler knows a part of Python only. `lint` reads the source of
a module with kernels and lists what is known to be refused (the vendor's release notes and language
guide), plus constructs that no kernel of the public NKI library uses and no document mentions. A
module without `nki.jit` is taken for a collection of device functions.

    for finding in lint(path):
        print(finding)        # kernels/mine.py:12: `is`: ...
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CODES = {
    "is": "`is` and `is not` are not known; write == None",
    "keyword-only": "a signature has no keyword-only parameters (`*`)",
    "old-namespace": "neuronxcc.nki is an error inside kernels since NKI 0.4",
    "class": "a class derives from nl.NKIObject (or Enum) and from nothing else",
    "assignment": "a tensor is not assigned to; use an instruction",
    "raw-value": "an enum member or buffer object, not its number or name",
    "no-hardware": "the device has no such operation",
    "wrapper": "nl functions on tiles are experimental; use nisa",
    "matmul-flag": "pass accumulate= to nc_matmul",
    "dynamic-loop": "nl.dynamic_range is deprecated; use nl.fori_loop",
    "dictionary-key": "dictionary keys are strings",
    "impure": "a kernel depends on its arguments only, not on names that change",
    "foreign": "inside a kernel only nki and plain Python; arrays of other libraries are not values",
    "import": "an import inside of a kernel",
    "construct": "not in the language guide, and in no kernel of the public library",
}

CONSTRUCTS: dict[type[ast.AST], str] = {
    ast.ListComp: "a list comprehension", ast.SetComp: "a set comprehension",
    ast.DictComp: "a dictionary comprehension", ast.GeneratorExp: "a generator",
    ast.Lambda: "a lambda", ast.Try: "try", ast.With: "with", ast.Match: "match",
    ast.NamedExpr: ":=", ast.Yield: "yield", ast.YieldFrom: "yield from", ast.Await: "await",
    ast.AsyncFunctionDef: "async", ast.AsyncFor: "async", ast.AsyncWith: "async",
    ast.Delete: "del", ast.Set: "a set", ast.MatMult: "@", ast.Starred: "* in a call or list",
}  # fmt: skip
ENUM_KEYWORDS = {
    "buffer", "engine", "reduce_cmd", "dge_mode", "oob_mode", "dma_engine", "perf_mode",
    "op", "op0", "op1", "cmp_op", "comp_op0", "comp_op1", "reduce_op",
}  # fmt: skip
NO_HARDWARE = {"divide", "mod", "fmod"}
# Of nl, what is not a wrapper around instructions.
PLAIN_NL = {
    "ndarray", "ds", "affine_range", "sequential_range", "static_range", "fori_loop", "while_loop",
    "program_id", "num_programs", "program_ndim", "shared_constant", "shared_identity_matrix",
    "device_print", "is_hbm", "is_sbuf", "is_psum", "is_on_chip",
}  # fmt: skip
FOREIGN = {"torch", "numpy", "np", "jax", "jnp", "ml_dtypes"}


@dataclass(frozen=True)
class Finding:
    """One thing the compiler refuses, or is not known to take."""

    path: str
    line: int
    code: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {CODES[self.code]}"


def lint(path: Path) -> list[Finding]:
    """Findings in the device functions of a file, by line."""
    return lint_text(path.read_text(encoding="utf-8"), path.name)


def lint_text(source: str, name: str = "<kernel>") -> list[Finding]:
    """`lint` of source text.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(source)
    found = [Finding(name, line, code, what) for line, code, what in _of_module(tree)]
    for function in device_functions(tree):
        found += [Finding(name, line, code, what) for line, code, what in _of_function(function)]
    return sorted(set(found), key=lambda f: (f.line, f.code))


def device_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions under `nki.jit` and those they mention; all of them if none is."""
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    todo = [f for f in defined.values() if any(_is_jit(d) for d in f.decorator_list)]
    todo += [defined[name] for name in _jitted_by_call(tree) if name in defined]
    if not todo:
        return list(defined.values())
    seen: list[ast.FunctionDef] = []
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.append(function)
        names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        todo += [defined[name] for name in sorted(names) if name in defined]
    return seen


def _is_jit(node: ast.expr) -> bool:
    inner = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(inner) in ("nki.jit", "jit")


def _jitted_by_call(tree: ast.Module) -> Iterator[str]:
    """Functions in `KERNEL = nki.jit(function)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_jit(node.func):
            yield from (a.id for a in node.args if isinstance(a, ast.Name))


Found = Iterator[tuple[int, str, str]]


def _of_module(tree: ast.Module) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [a.name for a in node.names]
            module = getattr(node, "module", None) or ""
            if any(n.startswith("neuronxcc") for n in (*names, module)):
                yield node.lineno, "old-namespace", ast.unparse(node)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(b).rpartition(".")[2] for b in node.bases]
            if bases not in (["NKIObject"], ["Enum"], ["IntEnum"]):
                yield node.lineno, "class", f"class {node.name}({', '.join(bases)})"


def _of_function(function: ast.FunctionDef) -> Found:
    tensors = _tensor_names(function)
    for node in ast.walk(function):
        line = getattr(node, "lineno", function.lineno)
        if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs:
            yield line, "keyword-only", f"{node.name}(..., *, {node.args.kwonlyargs[0].arg})"
        elif isinstance(node, ast.Compare):
            if any(isinstance(o, (ast.Is, ast.IsNot)) for o in node.ops):
                yield line, "is", ast.unparse(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield line, "import", ast.unparse(node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield line, "impure", ast.unparse(node)
        elif isinstance(node, ast.Dict):
            yield from _dictionary(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            yield from _assignment(node, tensors)
        elif isinstance(node, ast.Call):
            yield from _call(node)
        elif isinstance(node, ast.Name) and node.id in FOREIGN:
            yield line, "foreign", node.id
        for kind, words in CONSTRUCTS.items():
            if isinstance(node, kind):
                yield line, "construct", words


def _tensor_names(function: ast.FunctionDef) -> set[str]:
    """Names bound to `nl.ndarray(...)` and the like, directly."""
    found = set()
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if ast.unparse(node.value.func) in ("nl.ndarray", "nl.zeros"):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def _assignment(node: ast.Assign | ast.AugAssign, tensors: set[str]) -> Found:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        base = target.value if isinstance(target, ast.Subscript) else None
        whole = isinstance(node, ast.AugAssign) and isinstance(target, ast.Name)
        name = base if base is not None else target
        if (base is not None or whole) and isinstance(name, ast.Name) and name.id in tensors:
            yield node.lineno, "assignment", ast.unparse(target) + " = ..."


def _dictionary(node: ast.Dict) -> Found:
    for key in node.keys:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            text = "**" if key is None else ast.unparse(key)
            yield node.lineno, "dictionary-key", text


def _call(node: ast.Call) -> Found:
    name = ast.unparse(node.func)
    module, _, function = name.rpartition(".")
    flagged = len(node.args) > 6 or any(k.arg == "accumulate" for k in node.keywords)
    if name == "nisa.nc_matmul" and not flagged:
        yield node.lineno, "matmul-flag", name
    if module == "nl":
        if function in NO_HARDWARE:
            yield node.lineno, "no-hardware", name
        elif function == "dynamic_range":
            yield node.lineno, "dynamic-loop", name
        elif function not in PLAIN_NL and function[:1].islower():
            yield node.lineno, "wrapper", name
    for keyword in node.keywords:
        value = keyword.value
        raw = isinstance(value, ast.Constant) and value.value is not None
        if keyword.arg in ENUM_KEYWORDS and raw and (module in ("nl", "nisa")):
            yield node.lineno, "raw-value", f"{keyword.arg}={ast.unparse(value)}"
        if isinstance(value, ast.Attribute) and ast.unparse(value) in (
            "nl.divide", "nl.mod", "nl.fmod",
        ):  # fmt: skip
            yield node.lineno, "no-hardware", ast.unparse(value)
