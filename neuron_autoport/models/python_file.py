"""Python files written or given at run time, imported under a name of their own.

Generated classes, examples of rules and a user's own modules are all real files: tracing and rewriting
read their source, tracebacks show it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def write_whole(path: Path, text: str) -> None:
    """Write `text`, all of it or nothing; another process that reads `path` never sees a part."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def import_file(name: str, path: Path) -> ModuleType:
    """The module `name` made by running the file `path`; run once per process for each name.

    Raises:
        BaseException: whatever running the file raises; the module is then not known by its name.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
