"""The report page of `autoport validate --html`: one self-contained file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import math
from html import escape

from jinja2 import Environment

from neuron_autoport.accuracy.schema import Depth, Report
from neuron_autoport.accuracy.text import module_rows, number

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 280, 62, 34
_COLOURS = {"reference": "#7a7f87", "ported": "#c2410c"}

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1c1f23;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse;font-size:13px}
th,td{padding:.25rem .7rem;border-bottom:1px solid #e2e4e8;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#15803d;font-weight:600}.bad{color:#b91c1c;font-weight:600}.scroll{overflow-x:auto}
pre{background:#f4f5f7;padding:.7rem;overflow-x:auto;font-size:13px}svg{max-width:100%;height:auto}
.note{color:#5b616a}
@media (prefers-color-scheme:dark){body{background:#16181c;color:#e4e6ea}th,td{border-color:#33373e}
pre{background:#22252b}.ok{color:#4ade80}.bad{color:#f87171}.note{color:#a0a6b0}}
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>autoport validate: {{ s.model }}</title><style>{{ style }}</style></head><body>
<h1>{{ s.architecture }}: {{ mark(r.passed) }}</h1>
<p class="note">{{ s.model }} · {{ s.dtype }} · {{ s.impl }}{% if s.layered %} · layer by layer{% endif %} ·
{{ "%.0f"|format(r.seconds) }} s</p>
{% for f in r.failures %}
<h2>✗ {{ f.where }}{% if f.layer is not none %} (layer {{ f.layer }}){% endif %}
{% if f.inputs and f.level == 3 %}, {{ f.inputs }} inputs{% endif %}</h2>
<p>{{ f.why }}</p>{% if f.bad %}<p>{{ f.bad.text }}</p>{% endif %}
<p>Behind it: {{ f.explained }}</p>
{% if f.commands %}<pre>{{ f.commands|join("\n") }}</pre>{% endif %}
{% endfor %}
{% if r.level3 %}
<h2>Level 3, modules: {{ mark(r.level3.passed) }}</h2>
<p class="note">{{ r.level3.rows }} × {{ r.level3.tokens }} tokens; recorded, small-row and outlier inputs.
R is the error over the reference's own in the same dtype.</p>
{% if plot %}<h3>Error of the hidden states against depth</h3>{{ plot|safe }}{% endif %}
<h3>Worst figures by class</h3><div class="scroll"><table><tr>
{% for h in ("module", "layers", "worst R", "on", "coefficient", "L∞ ratio", "L2 ratio", "verdict") %}<th>{{ h }}</th>
{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}
<td class="{{ 'n' if loop.index in (3, 5, 6, 7) else '' }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</table></div>
<h3>Sites</h3><div class="scroll"><table><tr><th>module</th><th>class</th><th>rules</th><th>R real</th>
<th>R worst</th><th>verdict</th></tr>
{% for m in sites %}<tr><td>{{ m.path }}</td><td>{{ m.name }}</td><td>{{ m.rules }}</td><td class="n">{{ m.real }}</td>
<td class="n">{{ m.worst }}</td><td>{{ mark(m.passed) }}</td></tr>{% endfor %}</table></div>
{% endif %}
{% for l in r.level2 %}
<h2>Level 2, prompts: {{ mark(l.passed) }}</h2><p class="note">{{ l.host }}</p>
{% for m in l.modes %}<h3>{{ m.mode }}: {{ mark(m.passed) }}</h3><p class="note">{{ m.why }}</p>
<div class="scroll"><table><tr>
{% for h in ("prompt", "positions", "top 5", "50", "1000", "all", "KL mean", "KL max", "agreement", "reference's",
"first divergence") %}<th>{{ h }}</th>{% endfor %}</tr>
{% for p in m.prompts %}<tr><td>{{ p.prompt }}</td><td class="n">{{ p.positions }}</td>
{% for k in ("5", "50", "1000", "all") %}<td class="n">{{ percent(p.errors.get(k)) }}</td>{% endfor %}
<td class="n">{{ small(p.kl_mean) }}</td><td class="n">{{ small(p.kl_max) }}</td>
<td class="n">{{ percent(p.agreement) }}</td><td class="n">{{ percent(p.reference_agreement) }}</td>
<td class="n">{{ "none" if p.first_divergence is none else p.first_divergence }}</td></tr>{% endfor %}
</table></div>{% endfor %}
{% if l.cache %}<h3>KV cache</h3><div class="scroll"><table><tr><th>layer</th><th>part</th><th>mode</th>
<th>coefficient</th><th>R</th><th>verdict</th></tr>
{% for c in l.cache %}<tr><td class="n">{{ c.layer }}</td><td>{{ c.part }}</td><td>{{ c.mode }}</td>
<td class="n">{{ "%.4f"|format(c.figures.coefficient) }}</td><td class="n">{{ number(c.figures.r) }}</td>
<td>{{ mark(c.figures.passed) }}</td></tr>{% endfor %}</table></div>{% endif %}
{% for m, why in l.skipped.items() %}<p>{{ m }} left out: {{ why }}</p>{% endfor %}
{% endfor %}
{% if r.level1 %}
<h2>Level 1, tasks: {{ mark(r.level1.passed) }}</h2><div class="scroll"><table><tr>
{% for h in ("task", "metric", "documents", "ported", "reference", "difference", "95 % interval", "p", "verdict") %}
<th>{{ h }}</th>{% endfor %}</tr>
{% for t in r.level1.tasks %}<tr><td>{{ t.task }}</td><td>{{ t.metric }}</td><td class="n">{{ t.documents }}</td>
<td class="n">{{ "%.4g"|format(t.ported) }}</td><td class="n">{{ "%.4g"|format(t.reference) }}</td>
<td class="n">{{ "%+.3g"|format(t.difference) }}</td>
<td class="n">{{ "%+.3g … %+.3g"|format(t.interval[0], t.interval[1]) }}</td>
<td class="n">{{ "%.3g"|format(t.p_value) }}</td><td>{{ t.verdict }}</td></tr>{% endfor %}</table></div>
{% endif %}
<h2>Not shown by this</h2><ul>{% for n in r.not_shown %}<li>{{ n }}</li>{% endfor %}</ul>
<h2>Settings</h2><table>
{% for name, value in settings %}<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</table>
</body></html>
"""


def report_page(report: Report) -> str:
    """The whole page as HTML text."""
    environment = Environment(autoescape=True)
    template = environment.from_string(_PAGE)
    level3 = report.level3
    return template.render(
        r=report, s=report.settings, style=_STYLE, number=number, mark=_mark, percent=_percent,
        small=lambda v: "–" if v is None else f"{v:.1e}", settings=_settings(report),
        plot=depth_plot(level3.depth) if level3 is not None and level3.depth else "",
        rows=module_rows(level3.modules) if level3 is not None else [], sites=_sites(report),
    )  # fmt: skip


def _mark(passed: bool) -> object:
    from markupsafe import Markup

    return Markup(
        f'<span class="{"ok" if passed else "bad"}">{"passed" if passed else "FAILED"}</span>'
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _settings(report: Report) -> list[tuple[str, str]]:
    settings = report.settings
    sites = ", ".join(f"{k} {v}" for k, v in sorted(report.sites.items()))
    memory = ", ".join(
        f"{k.replace('_', ' ')} {v / 2**30:.1f} GiB" for k, v in settings.memory.items()
    )
    return [
        ("levels", ", ".join(map(str, settings.levels))),
        ("sites", sites or "none"),
        ("switched off", ", ".join(settings.without) or "nothing"),
        ("left out by the proof", "; ".join(settings.dropped) or "nothing"),
        ("memory", memory),
        ("device", settings.device),
        *((f"version of {k}", v) for k, v in settings.versions.items()),
    ]


def _sites(report: Report) -> list[dict[str, object]]:
    """Every compared module that is rewritten, once: R on real inputs, and the worst."""
    found: dict[str, dict[str, object]] = {}
    for module in report.level3.modules if report.level3 is not None else []:
        if not module.rules:
            continue
        rules = ", ".join(r.partition(":")[2] for r in module.rules)
        row = found.setdefault(module.path, {
            "path": module.path, "name": module.class_name, "rules": rules, "real": "–", "worst": "–",
            "passed": True, "r": -1.0,
        })  # fmt: skip
        r = math.inf if module.figures.r is None else module.figures.r
        if module.inputs == "real":
            row["real"] = number(module.figures.r)
        if r > float(str(row["r"])):
            row["r"], row["worst"] = r, number(module.figures.r)
        row["passed"] = bool(row["passed"]) and module.figures.passed
    return list(found.values())


def depth_plot(depth: list[Depth]) -> str:
    """Error against depth as inline SVG: the reference's own and the port's, on a logarithmic scale."""
    values = [v for d in depth for v in (d.reference, d.ported) if v > 0 and math.isfinite(v)]
    if not values:
        return ""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    step = (_WIDTH - _LEFT - 20) / max(1, len(depth) - 1)

    def x(place: int) -> float:
        return _LEFT + place * step

    def y(value: float) -> float:
        inside = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return _HEIGHT - _BOTTOM - inside * (_HEIGHT - _BOTTOM - 30)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="12" fill="currentColor" '
        'aria-label="relative error of the hidden states after each unit">'
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" '
            f'stroke-opacity=".15"/><text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>'
        )
    every = max(1, len(depth) // 12)
    for place, unit in enumerate(depth):
        if place % every == 0:
            name = str(unit.layer) if unit.layer is not None else unit.path.rpartition(".")[2][:6]
            parts.append(
                f'<text x="{x(place):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(name)}</text>'
            )
    for number_, (key, colour) in enumerate(_COLOURS.items()):
        points = [(x(i), y(getattr(d, key)), d) for i, d in enumerate(depth)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in points)
        dash = ' stroke-dasharray="5 4"' if key == "reference" else ""
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        for a, b, unit in points:
            title = f"{escape(unit.path)}: {getattr(unit, key):.2e}"
            parts.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"><title>{title}</title></circle>'
            )
        label = "reference's own error" if key == "reference" else "port's error"
        parts.append(f'<text x="{_LEFT + 8 + 190 * number_}" y="18" fill="{colour}">{label}</text>')
    return "".join([*parts, "</svg>"])
