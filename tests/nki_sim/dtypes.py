"""Data types of the device, by name, as NumPy types (bfloat16 and fp8 from ml_dtypes), and casts.

All arithmetic reads any type into float32 and rounds once when it is written: `cast`.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from tests.nki_sim.errors import refuse

Array = np.ndarray[Any, Any]
F32 = np.float32

NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "bool_": np.uint8, "int8": np.int8, "int16": np.int16, "int32": np.int32,
        "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32,
        "float16": np.float16, "float32": np.float32, "tfloat32": np.float32,
        "bfloat16": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.float8_e4m3,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    }.items()
}  # fmt: skip
_ALIASES = ("bool_", "tfloat32")  # other meanings of uint8 and float32
_NAMES = {kind: name for name, kind in NUMPY.items() if name not in _ALIASES}
_NAMES[np.dtype(np.bool_)] = "bool_"


def dtype_name(dtype: Any) -> str:
    """The device's name of a type given as name, NumPy or torch type.

    Raises:
        SimError: a type the device has not (int64, float64, complex).
    """
    if isinstance(dtype, str):
        name = dtype
    elif type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
    else:
        name = _NAMES.get(np.dtype(dtype), str(np.dtype(dtype)))
    name = {"bool": "bool_", "uint8_": "uint8"}.get(name, name)
    if name not in NUMPY:
        refuse("dtype-exists", f"{name} is not a type of the device")
    return name


def is_integer(name: str) -> bool:
    """Whether elements are integers (bool counts)."""
    return NUMPY[name].kind in "iu"


def is_float(name: str) -> bool:
    return not is_integer(name)


def cast(values: Array, name: str) -> Array:
    """`values` rounded to a type of the device: to nearest even, integers saturating.

    Integers go to integers exactly and saturate; everything else goes through float32.
    """
    target = NUMPY[name]
    if values.dtype == target:
        return values
    if target.kind in "iu":
        limits = np.iinfo(target)
        if values.dtype.kind not in "iu":
            values = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0))
        return np.clip(values, limits.min, limits.max).astype(target)
    with np.errstate(over="ignore", invalid="ignore"):  # too large becomes infinite, as there
        return values.astype(F32).astype(target)


def torch_type(name: str) -> Any:
    """The torch type with the same bits."""
    torch = sys.modules["torch"]
    return {"bool_": torch.bool, "tfloat32": torch.float32}.get(name) or getattr(torch, name)
