"""Turn an exception raised inside transformers or a model's own code into one the user can act on.

A configuration's constructor and a model's `__init__` are code written by others: they fail in
whatever way they fail (`None * int`, a missing attribute, a validation error). Here such an
exception becomes a `ModelError` that names the configuration fields which most likely caused it.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig, dynamic_module_utils

from neuron_autoport.errors import ModelError

# What a configuration or model class may raise for a bad field. Listed rather than `Exception`, so
# that a fault of this package's own (an AutoportError, a KeyboardInterrupt) passes through
# unchanged.
BUILD_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    SyntaxError,
    TypeError,
    ValueError,
)

_NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")
_MODEL_FILE = re.compile(r"(modeling|configuration)_\w+\.py$")
_FIELD_NAMED = re.compile(r"[Ff]ield '(\w+)'|`(\w+)`|validator '(\w+)'")


def one_line(err: BaseException) -> str:
    """The exception's type and message on one line, at most 300 characters."""
    message = " ".join(str(err).split())
    text = f"{type(err).__name__}: {message}" if message else type(err).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _configs(config: PretrainedConfig | None) -> Iterator[PretrainedConfig]:
    if config is None:
        return
    yield config
    for name in config.sub_configs:
        sub = getattr(config, name, None)
        if isinstance(sub, PretrainedConfig):
            yield from _configs(sub)


def _values(name: str, config: PretrainedConfig | None) -> list[object]:
    """The values of field `name` in the configuration and its parts that have such a field."""
    absent = object()
    values: list[object] = [getattr(c, name, absent) for c in _configs(config)]
    return [value for value in values if value is not absent]


def _failing_source(err: BaseException) -> tuple[str, str]:
    """Text of the innermost failing statement in a model's file; its function up to there."""
    tb, found = err.__traceback__, None
    while tb is not None:
        if _MODEL_FILE.search(tb.tb_frame.f_code.co_filename):
            found = tb
        tb = tb.tb_next
    if found is None:
        return "", ""
    code = found.tb_frame.f_code
    lines = linecache.getlines(code.co_filename)
    # A statement over several lines fails at any of them: three more lines hold the rest of most
    # calls.
    statement = "".join(lines[found.tb_lineno - 1 : found.tb_lineno + 3])
    return statement, "".join(lines[code.co_firstlineno - 1 : found.tb_lineno])


def suspect_fields(err: BaseException, config: PretrainedConfig | None) -> list[str]:
    """Configuration fields that most likely caused `err`, most likely first; may be empty.

    Clues, in this order: the attribute an AttributeError misses; a field named by a validation
    error; the names in the failing statement that are fields whose value is None (for a failed
    look-up: a list or dict); the same for every `config.NAME` earlier in the failing function.
    """
    found: list[str] = []
    if isinstance(err, AttributeError):
        found += _NO_ATTRIBUTE.findall(str(err))
    if isinstance(err, StrictDataclassError | AssertionError | ValueError):
        names = [name for groups in _FIELD_NAMED.findall(str(err)) for name in groups if name]
        found += [name for name in names if config is None or _values(name, config)]
    statement, function = _failing_source(err)
    wanted: tuple[type, ...] = (list, dict) if isinstance(err, LookupError) else (type(None),)
    for text, pattern in ((statement, r"\w+"), (function, r"config\.(\w+)")):
        names = [name for name in re.findall(pattern, text) if not name.endswith("_token_id")]
        found += [n for n in names if any(isinstance(v, wanted) for v in _values(n, config))]
        if found:
            break
    return list(dict.fromkeys(found))


def _own_code(err: BaseException) -> str | None:
    """`file:line` where code that came with a model failed, innermost; None if it was other code.

    transformers runs such code from a copy in its modules cache; the file has its own name there.
    """
    if isinstance(err, SyntaxError):
        file = err.filename or "<unknown>"
        named = file if not file.startswith("<") else "a file that `auto_map` names"
        return f"{Path(named).name}:{err.lineno}"
    found, tb = None, err.__traceback__
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if file.startswith(dynamic_module_utils.HF_MODULES_CACHE):
            found = f"{Path(file).name}:{tb.tb_lineno}"
        tb = tb.tb_next
    return found


def _own_code_failed(err: BaseException, where: str | None, place: str) -> ModelError:
    """The model's own code raised `err` at `place`."""
    step = f"mend {place.partition(':')[0]} there, or ask who wrote it"
    if isinstance(err, ImportError) and "transformers" in str(err):
        step = (
            f"the code is for another transformers than {transformers.__version__}: mend the import, or "
            "`pip install transformers==` the version its config.json names"
        )
    elif isinstance(err, ImportError):
        step = "install the package named above, then repeat the command"
    what = f"The code that comes with this model fails: {one_line(err)}"
    return ModelError(what, f"{where}, {place}" if where else place, step)


def build_failed(
    err: BaseException, *, what: str, where: str | None, config: PretrainedConfig | None = None
) -> ModelError:
    """A ModelError for `err`, which was raised while `what` was being made.

    Args:
        err: the exception, with its traceback.
        what: the thing that could not be made, e.g. "the model" or "the configuration of `dbrx`".
        where: the model as the user named it, or a file.
        config: the configuration in use, if there is one yet: its None fields are clues.
    """
    own = _own_code(err)
    if own is not None:
        return _own_code_failed(err, where, own)
    fields = [] if isinstance(err, ImportError) else suspect_fields(err, config)
    place = where
    if fields:
        named = ", ".join(f"`{name}`" for name in fields[:3])
        place = f"{where}, field {named}" if where else f"field {named}"
        step = f"set {named} in a config.json and run `autoport inspect FOLDER` on its folder"
    elif isinstance(err, ImportError):
        step = "install the package named above, then repeat the command"
    else:
        step = "write a complete config.json and run `autoport inspect FOLDER` on its folder"
    return ModelError(f"{what} cannot be built: {one_line(err)}", place, step)
