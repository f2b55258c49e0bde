"""Reading the catalogue: nf.yaml and nkilib.yaml as they are, our own kernels from their limits.

The data files are part of the package and checked here, so that a wrong word in one is found by the first
test that loads it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML

from neuron_autoport.catalogue.entry import FEATURES, PARTS, Entry, Need
from neuron_autoport.catalogue.sizes import PHASES, SIZES, TARGETS
from neuron_autoport.kernels.limits import KERNELS, Kernel, Limit

OWN = "neuron_autoport"
_EVIDENCE = {
    "nf": "from the call contract of the plugin",
    "read": "its source was read",
    "documented": "known from documentation only",
    "simulated": "verified in simulation against torch",
}


@lru_cache(maxsize=8)
def data(name: str) -> dict[str, Any]:
    """A data file of the catalogue."""
    text = files("neuron_autoport.catalogue").joinpath(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return loaded


def catalogue() -> tuple[Entry, ...]:
    """All entries: NF, our own (with those of packages the user named), the NKI library."""
    from neuron_autoport import kernels

    kernels.names()  # imports every kernel there is, so that its limits are known
    own = data("own.yaml")
    known = {e["name"]: e for e in own["entries"]}
    ours = [_own(k, known.get(name, {}), own["outside"]) for name, k in KERNELS.items()]
    nf, library = data("nf.yaml"), data("nkilib.yaml")
    return (
        *(_entry(e, nf) for e in nf["entries"]),
        *ours,
        *(_entry(e, library) for e in library["entries"]),
    )


def _entry(given: dict[str, Any], file: dict[str, Any]) -> Entry:
    """An entry of a data file."""
    kind = file["kind"]
    evidence = _EVIDENCE["nf"] if kind == "nf" else _of_library(given)
    return checked(
        Entry(
            name=given["name"],
            kind=kind,
            module=given["module"],
            does=given["does"],
            words=tuple(given.get("words", ())),
            part=tuple(given.get("part", ())),
            phases=tuple(given["phases"]),
            targets=tuple(given.get("targets", TARGETS)),
            takes=given.get("takes", ""),
            gives=given.get("gives", ""),
            needs=tuple(_need(n) for n in given.get("needs", ())),
            can=tuple(given.get("can", ())),
            only=tuple(given.get("only", ())),
            outside=given.get("outside", file["outside"]),
            notes=tuple(given.get("notes", ())),
            evidence=evidence,
        )
    )


def _of_library(given: dict[str, Any]) -> str:
    since = str(given["since"])
    how = "read" if since == "2.29" else "documented"
    parts = [f"since {since}", _EVIDENCE["simulated" if given.get("simulated") else how]]
    return ", ".join(parts)


def _need(given: Any) -> Need:
    return Need.of(given) if isinstance(given, str) else Need.of(**given)


def _own(kernel: Kernel, known: dict[str, Any], outside: str) -> Entry:
    """An entry from a kernel's limits; `known` is what own.yaml says of it, if anything."""
    sizes: dict[str, str] = known.get("sizes", {})
    needs = {limit: _limit(limit, sizes) for limit in kernel.limits}
    return checked(
        Entry(
            name=f"NK.{kernel.name}",
            kind="own",
            module=kernel.module,
            does=kernel.summary,
            words=(kernel.name, *known.get("words", ())),
            part=tuple(known.get("part", ())),
            phases=kernel.phases,
            takes=kernel.equation,
            needs=tuple(Need.of(t, None, x.why) for x, t in needs.items() if t is not None),
            call_needs=tuple(str(x) for x, t in needs.items() if t is None),
            can=tuple(known.get("can", ())),
            outside=outside,
            notes=() if kernel.provider == OWN else (f"of {kernel.provider}",),
            evidence=kernel.evidence,
        )
    )


def _limit(limit: Limit, sizes: dict[str, str]) -> str | None:
    """The limit in the catalogue's words, or None if only a call can tell."""
    name = sizes.get(limit.of)
    if name is None or limit.same_as is not None:
        return None
    if limit.most is not None:
        return f"{name} <= {limit.most}"
    if limit.multiple_of is not None:
        return f"{name} % {limit.multiple_of} == 0"
    return " or ".join(f"{name} == {value!r}" for value in limit.one_of)


def checked(entry: Entry) -> Entry:
    """Refuse an entry with a word that nothing knows: a fault in a data file."""
    wrong = [
        *(f"part {p}" for p in entry.part if p not in PARTS),
        *(f"phase {p}" for p in entry.phases if p not in PHASES),
        *(f"target {t}" for t in entry.targets if t not in TARGETS),
        *(f"feature {c}" for c in (*entry.can, *entry.only) if c not in FEATURES),
        *(f"size {n}" for need in entry.needs for n in sorted(need.names - set(SIZES))),
        *(f"phase {n.phase}" for n in entry.needs if n.phase not in (None, *PHASES)),
    ]
    if wrong:
        raise ValueError(f"catalogue: {entry.name}: unknown {', '.join(wrong)}")
    return entry
