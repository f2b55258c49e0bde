"""Accuracy: the three-way comparison as a library, and the three levels of `autoport validate`.

For tests of your own: `assert_close_three_way(baseline, expected, actual)`, `three_way`, and the metrics.
"""

from neuron_autoport.accuracy.metrics import (
    TOP_K_TOLERANCES,
    agreement,
    bhattacharyya,
    kl_divergence,
    top_k_errors,
    ulp_distance,
)
from neuron_autoport.accuracy.three_way import (
    Limits,
    ThreeWay,
    Verdict,
    assert_close_three_way,
    three_way,
)
from neuron_autoport.accuracy.view import BadElement, first_bad

__all__ = [
    "TOP_K_TOLERANCES",
    "BadElement",
    "Limits",
    "ThreeWay",
    "Verdict",
    "agreement",
    "assert_close_three_way",
    "bhattacharyya",
    "first_bad",
    "kl_divergence",
    "three_way",
    "top_k_errors",
    "ulp_distance",
]
