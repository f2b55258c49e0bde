"""Casts of the simulator against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.nki_sim.dtypes import NUMPY, cast, dtype_name, torch_type
from tests.nki_sim.errors import SimError

VALUES = np.array(
    [0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 1e-8, 1 / 3, 250.7, -129.0, 65519.0, 1e6, -3e9, 1e20, np.inf],
    np.float32,
)
FLOATS = ["float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"]


@pytest.mark.parametrize("name", FLOATS)
def test_floats_round_as_torch_does(name: str) -> None:
    values = VALUES[np.abs(VALUES) < 400] if name.startswith("float8") else VALUES
    want = torch.from_numpy(values).to(getattr(torch, name)).float().numpy()
    np.testing.assert_array_equal(cast(values, name).astype(np.float32), want)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_round_to_even_and_saturate(name: str) -> None:
    limits = np.iinfo(NUMPY[name])
    want = [min(max(int(np.rint(v)), limits.min), limits.max) for v in VALUES[:-1].tolist()]
    assert cast(VALUES[:-1], name).tolist() == want
    assert cast(VALUES[-1:], name).tolist() == [limits.max]


def test_the_narrow_fp8_ends_at_240() -> None:
    assert float(cast(np.array([240.0], np.float32), "float8_e4m3")[0]) == 240.0
    assert not np.isfinite(float(cast(np.array([300.0], np.float32), "float8_e4m3")[0]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, np.int64, np.complex64, "int4"])
def test_types_the_device_has_not(dtype: object) -> None:
    with pytest.raises(SimError, match="dtype-exists"):
        dtype_name(dtype)


@pytest.mark.parametrize("name", [*FLOATS, "int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_names_go_to_torch_and_back(name: str) -> None:
    assert dtype_name(torch_type(name)) == name
    assert dtype_name(NUMPY[name]) == name
