"""A rule file is plain YAML: small, shallow, without anchors and tags. What is not is refused before it is built.

An anchor can make a file of a kilobyte into one of gigabytes, and deep nesting ends any reader. Rules need
neither.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from neuron_autoport.errors import RuleError
from neuron_autoport.rules.load import load_rule
from neuron_autoport.rules.rule import Rule

MOST_BYTES = 128 * 1024
MOST_DEPTH = 24
MOST_LINE = 400
# What may be an anchor, an alias, a tag or deep nesting; only then is the file looked at token by token.
_SUSPECT = re.compile(rb"(?:^|[\s\[{,:])[&*!]\S|^ {100}|(?:[\[{(]\s*){20}", re.MULTILINE)
_STEP = "autoport rules show gated_mlp"


def load_plain_rule(path: Path, content: bytes) -> Rule:
    """Read a rule file, whatever it is.

    Raises:
        RuleError: with all its faults; or that it is too large, too deep, or not plain.
    """
    if len(content) > MOST_BYTES:
        what = f"a rule file of {len(content):,} bytes; {MOST_BYTES:,} is the most"
        raise RuleError(what, str(path), "one rule a file: split it")
    if _SUSPECT.search(content):
        _check_events(path, content)
    try:
        with warnings.catch_warnings():  # Python's parser warns of what is told as a fault
            warnings.simplefilter("ignore", SyntaxWarning)
            return load_rule(path, content)
    except (RecursionError, MemoryError):  # Python's parser raises either
        raise RuleError("something in the file is nested too deeply", str(path), _STEP) from None
    except RuleError as error:
        lines = [_short(line) for line in error.what.split("\n")]
        raise RuleError("\n".join(lines), error.where, error.next_step) from None


def _short(line: str) -> str:
    """A line of a message; what quotes a very long text of the file is cut in its middle."""
    half = MOST_LINE // 2
    return line if len(line) <= MOST_LINE else f"{line[:half]} ... {line[-half:]}"


def _check_events(path: Path, content: bytes) -> None:
    """Walk through the file without building anything of it."""
    depth = 0
    try:
        for event in YAML(typ="rt").parse(content.decode("utf-8")):
            place = f"{path}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"
            kind = type(event).__name__
            depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
            if depth > MOST_DEPTH:
                raise RuleError(f"nested more than {MOST_DEPTH} levels deep", place, _STEP)
            if getattr(event, "anchor", None):
                raise RuleError("anchors and aliases (& and *) are not read here", place, _STEP)
            tag = getattr(event, "tag", None)
            if tag:
                raise RuleError(f"the tag {tag} is not read here", place, f"take it away; {_STEP}")
    except (YAMLError, UnicodeDecodeError):
        return  # load_rule tells what is wrong with it
