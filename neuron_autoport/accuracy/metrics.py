"""The numbers of accuracy: errors against a baseline, their distributions, and logits under a top-k.

Words as in the Neuron plugin's accuracy helper: *baseline* is the truth in a higher precision, *expected* the
reference in the target's dtype, *actual* what is judged. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Histogram of errors: bins over the joint range, at most half an RMS wide and no finer, because errors within
# a row are not independent. Fewer for small tensors, so that a bin is not empty by chance.
_MOST_BINS, _FEWEST_BINS = 24, 8
_PER_BIN = 32
# Errors beyond this many of the larger RMS share the outermost bins: one outlier must not widen all bins.
_CLIP = 6.0
# Tolerances of the plugin's logit validation, by how many of the highest logits they are asked of.
TOP_K_TOLERANCES: dict[int | None, float] = {5: 0.011, 50: 0.02, 1000: 0.03, None: 0.05}
LOGIT_ATOL = 1e-5


def rms(values: Tensor) -> float:
    """Root mean square, 0.0 of nothing."""
    count = values.numel()
    norm = torch.linalg.vector_norm(values, dtype=torch.float64) if count else 0.0
    return float(norm) / math.sqrt(count or 1)


def bhattacharyya(first: Tensor, second: Tensor) -> float:
    """How far two samples overlap: sum over bins of sqrt(p q), 1.0 for the same distribution.

    Args:
        first, second: samples of any shape, finite. Both are binned over one range, so a shift, a
            change of width and a change of shape all lower the coefficient (A. Bhattacharyya, 1943).

    Returns:
        0.0 (disjoint) to 1.0; what two samples of this size lose by chance is added back. Two
        samples of zeros only are the same; zeros only against others are not.
    """
    a, b = first.double().flatten(), second.double().flatten()
    if not a.numel() or not b.numel():
        return 1.0 if a.numel() == b.numel() else 0.0
    sizes = rms(a), rms(b)
    scale = max(sizes)
    if scale == 0.0:
        return 1.0
    if min(sizes) == 0.0:
        return 0.0
    edge = min(_CLIP * scale, float(torch.maximum(a.abs().max(), b.abs().max())))
    bins = max(_FEWEST_BINS, min(_MOST_BINS, min(a.numel(), b.numel()) // _PER_BIN))
    counts = [torch.histc(v.clamp(-edge, edge), bins, -edge, edge) / v.numel() for v in (a, b)]
    filled = int(((counts[0] + counts[1]) > 0).sum())
    # Two samples of one distribution fall short of 1 by this much in the mean (second-order expansion).
    chance = (filled - 1) / 8 * (1 / a.numel() + 1 / b.numel())
    return min(1.0, float((counts[0] * counts[1]).sqrt().sum()) + chance)


def ratio(actual: float, expected: float) -> float:
    """actual / expected; 1.0 where both are zero, infinite where only the second is."""
    if expected:
        return actual / expected
    return math.inf if actual else 1.0


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """How many representable numbers of their dtype lie between a and b, elementwise, as int64.

    Args:
        a, b: the same dtype: float64, float32, float16 or bfloat16.

    Raises:
        TypeError: another dtype, or two different ones.
    """
    widths = {
        torch.float64: torch.int64, torch.float32: torch.int32,
        torch.float16: torch.int16, torch.bfloat16: torch.int16,
    }  # fmt: skip
    if a.dtype is not b.dtype or a.dtype not in widths:
        raise TypeError(f"units in the last place are of one dtype, got {a.dtype} and {b.dtype}")
    places = []
    for value in (a, b):
        bits = value.contiguous().view(widths[value.dtype]).long()
        lowest = -(1 << (8 * value.element_size() - 1))
        # Negative floats count downwards from zero; both zeros are one place.
        places.append(torch.where(bits < 0, lowest - bits, bits))
    return (places[0] - places[1]).abs()


def top_k_errors(
    reference: Tensor,
    actual: Tensor,
    ks: Sequence[int | None] = tuple(TOP_K_TOLERANCES),
    *,
    order: Tensor | None = None,
) -> dict[int | None, float]:
    """Largest relative error of `actual` at the reference's k highest logits, for each k.

    (|actual - reference| - 1e-5) / max |reference| over all, as the plugin's `assert_close`.

    Args:
        reference, actual: [positions, vocabulary]. NaN in `actual` is a logit that was not reported; it
            is left out, and a k of which any is missing is not in the result.
        order: the reference's highest tokens, [positions, max(ks)], if known already.
    """
    errors: dict[int | None, float] = {}
    scale = float(reference.abs().max()) or 1.0
    most = max((k for k in ks if k is not None), default=0)
    if order is None and most:
        order = reference.topk(min(most, reference.shape[-1]), dim=-1).indices
    for k in ks:
        if k is None or order is None:
            difference = (actual - reference).abs()
        else:
            where = order[:, :k]
            difference = (actual.gather(-1, where) - reference.gather(-1, where)).abs()
        worst = float(difference.max())  # NaN if any is
        if not math.isnan(worst):
            errors[k] = max(0.0, worst - LOGIT_ATOL) / scale
    return errors


def kl_divergence(reference: Tensor, actual: Tensor) -> Tensor:
    """KL(reference || actual) of the softmaxes, in nats, one value per position.

    Args:
        reference, actual: logits [positions, vocabulary]; rows with a NaN give NaN.
    """
    p, q = (torch.log_softmax(v, dim=-1) for v in (reference, actual))
    return (p.exp() * (p - q)).sum(-1, dtype=torch.float64).clamp(min=0.0)


def agreement(reference: Tensor, actual: Tensor) -> tuple[float, int | None]:
    """Share of positions with the same most likely token, and the first where they differ.

    Args:
        reference, actual: logits [positions, vocabulary]; NaN counts as lowest.
    """
    low = torch.nan_to_num(actual, nan=-math.inf)
    same = reference.argmax(-1) == low.argmax(-1)
    if bool(same.all()):
        return 1.0, None
    return float(same.double().mean()), int((~same).nonzero()[0, 0])
