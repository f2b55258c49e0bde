"""exported(name): the package of one of `packages.ARCHITECTURES`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import run
from tests.export.packages import ARCHITECTURES, Exported, make

__all__ = ["run"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def get(name: str) -> Exported:
        if name not in made:
            made[name] = make(tmp_path_factory.mktemp("export"), name, **ARCHITECTURES[name])
        return made[name]

    return get
