"""A folder with its own modeling file, served: only when its code is trusted, on one rank and on two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.vllm.own_code import make_own_model
from tests.hosts.vllm.serving import hugging_face_tokens, prompts, refusal, serve

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_own_model(tmp_path_factory.mktemp("own"))


def test_without_trust_it_is_refused_before_its_code_runs(folder: Path) -> None:
    said = refusal(folder)
    assert "trust" in said and "remote" in said
    assert "Traceback" not in said


# Sites by hand: q/k/v, output projection and MLP of three layers, three norms and two of q and k, the norm at the end,
# the sum before the second norm.
SITES = 3 * (3 + 4 + 1) + 1
# Its rotations read cosines that have no axis to put in for the heads: each of q and k is refused, with a reason.
REFUSED = 3 * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_equal_hugging_face_without_a_plan_of_its_own(folder: Path, ranks: int) -> None:
    """Two ranks: heads and columns as the graph has them, the norm of all of q and k gathered."""
    options = ("--eager", "--trust", "--tp", str(ranks))
    served = serve(folder, prompts(), *options)
    assert served.tokens == hugging_face_tokens(folder, prompts(), trust=True)
    assert served.fused == (SITES, SITES + REFUSED)
