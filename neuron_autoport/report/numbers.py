"""Numbers as the reports print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neuron_autoport.report import schema as s

_UNITS = ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"))


def count(number: float) -> str:
    """`6.74 B`, `135 M`: three significant digits."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{_three(number / size)}{unit}"
    return str(round(number))


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(value: float) -> str:
    """`94.2 %`; only nothing prints as 0 % and only all as 100 %."""
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def seconds(parts: Mapping[str, float]) -> str:
    """The time of all stages together."""
    return f"{parts.get('total', sum(parts.values())):.1f}"


def sizes(weights: Iterable[s.Weight]) -> str:
    """Widths of linear maps: `4096→11008→4096` where each takes what the one before gives.

    Equal maps are written once (gate and up); one that is split shows its parts, `768→768+256+256`.
    """
    text, last = "", None
    seen = set()
    for w in weights:
        out = "+".join(str(n) for n in w.sizes)
        if (w.in_features, out) in seen:
            continue
        seen.add((w.in_features, out))
        if w.in_features == last:
            text += f"→{out}"
        else:
            text += f"{', ' if text else ''}{w.in_features}→{out}"
        last = w.out_features
    return text


def fused_text(c: s.Coverage) -> str:
    """`fused 5 of 6 sites, 15 of 17 matrix products`."""
    text = f"fused {c.sites.part} of {c.sites.whole} sites"
    if c.products is None or not c.products.whole:
        return text
    return f"{text}, {c.products.part} of {c.products.whole} matrix products"
