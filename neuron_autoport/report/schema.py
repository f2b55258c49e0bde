"""What `autoport inspect --json` prints, as pydantic models; `docs/inspect-json.md` explains it.

The terminal report is drawn from the same value. Adding a field keeps the schema number; changing
the meaning or the type of one, or taking one away, raises it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from neuron_autoport.report.schema_limits import KernelInfo as KernelInfo
from neuron_autoport.report.schema_limits import Limit as Limit
from neuron_autoport.report.schema_limits import Model as _Model
from neuron_autoport.report.schema_places import Place as Place
from neuron_autoport.report.schema_places import WarningInfo as WarningInfo
from neuron_autoport.report.schema_roofline import RooflineInfo
from neuron_autoport.report.schema_serving import ServingInfo


class ModelInfo(_Model):
    """The model as it was read."""

    name: str
    kind: Literal["folder", "model_type", "hub", "module"]
    model_type: str = Field(description="of transformers; empty for a module of the user's own")
    architecture: str
    parameters: int = Field(description="distinct parameters; tied ones count once")
    dtype: str = Field(description="dtype it was traced in")
    unserved: str | None = Field(default=None, description="what stops `port` and serving")


class Versions(_Model):
    autoport: str
    transformers: str
    torch: str


class Target(_Model):
    """What limits are judged for."""

    name: Literal["trn2", "trn3", "cpu"]
    tp: int


class Work(_Model):
    """Per token of one decode step, over all instances."""

    flops: int
    bytes: int


class WeightPart(_Model):
    """Columns `start` to `end` of a checkpoint tensor's output dimension."""

    module: str
    weight: str
    bias: str | None
    layout: str
    start: int
    end: int


class Weight(_Model):
    """One [in, out] weight of the rewritten class and what it is made of."""

    name: str
    attribute: str
    in_features: int
    out_features: int
    sizes: list[int]
    shard: str
    head_dim: int | None
    parts: list[WeightPart]


class SiteInfo(_Model):
    """One place in the class where a rule applies."""

    rule: str
    role: str
    call: str
    place: Place
    modules: list[str] = Field(description="child modules it replaces, as named in the class")
    found: dict[str, str]
    weights: list[Weight]
    limits: list[Limit]
    kernels: list[KernelInfo] = Field(default=[], description="none on the target cpu")
    work: Work
    weight_bytes: int


class RefusalInfo(_Model):
    """A rule that nearly applied, and why it did not."""

    code: str
    meaning: str
    rule: str
    message: str
    steps: str
    place: Place | None


class RuleInfo(_Model):
    """A rule this report speaks of, or one of the user's own; `nearest` if that has no site."""

    name: str
    file: str
    origin: str = Field(
        description="built in, package NAME, a pyproject.toml, AUTOPORT_RULES or --rules"
    )
    replaces_builtin: bool
    sites: int
    nearest: RefusalInfo | None


class TraceEndInfo(_Model):
    """Why a class could not be traced to its end."""

    code: str
    message: str
    where: str | None


class Unread(_Model):
    """A part of a mixture-of-experts block that was not understood."""

    part: Literal["router", "experts", "shared"]
    code: str
    meaning: str
    message: str
    place: Place | None


class MoEInfo(_Model):
    """A mixture-of-experts block: what it is, and what runs it."""

    router: str | None = Field(description="how it routes; None if not understood")
    experts: str | None
    shared: str | None = Field(description="an expert for every token; None if there is none")
    unread: list[Unread]
    prefill: str = Field(description="NF functions on Neuron, or `torch: ` and why")
    decode: str
    vllm: str = Field(description="what runs the experts on vLLM's CPU engine")


class ClassInfo(_Model):
    """One traced class in one configuration."""

    id: str
    name: str
    module: str
    linear: str | None = Field(description="`in→out` if the class is a plain linear map")
    paths: list[str]
    sites: list[SiteInfo]
    refusals: list[RefusalInfo]
    dropped: list[str] = Field(description="rules left out because their proof failed")
    end: TraceEndInfo | None
    moe: MoEInfo | None = Field(default=None, description="if the class calls experts")
    warnings: list[WarningInfo] = Field(default=[])


class Node(_Model):
    """A module of the tree; siblings of which the report says the same are one node.

    class_id: class of the first of `paths`. inside: the rule of the parent's site that replaces it.
    """

    name: str
    paths: list[str]
    class_id: str
    inside: str | None
    children: list[Node]


class Leftover(_Model):
    """Operations in no site, folded by class, kind and the function that computes them."""

    class_name: str
    kind: str
    operations: list[str]
    modules: list[str]
    function: str | None
    calls: int
    work: Work
    flops_share: float
    bytes_share: float


class Share(_Model):
    """`part` of `whole`; `percent` is 0 where `whole` is."""

    part: int
    whole: int
    percent: float


class Coverage(_Model):
    """How much of the model is in sites. FLOPs and bytes are per token of a decode step."""

    context: int
    sites: Share
    flops: Share
    bytes: Share
    weight_bytes: Share
    traced: bool = Field(
        description="false: part of the model was not reached, see `end` of classes"
    )
    products: Share | None = Field(default=None, description="matrix products that were traced")


class HeadInfo(_Model):
    """logits = scale_after_cap * soft_cap(scale * (h @ W + b)), or why it is not known."""

    scale: float | None
    soft_cap: float | None
    scale_after_cap: float | None
    module: str | None
    unknown: str | None


class Figures(_Model):
    """Errors against the truth, relative to its RMS."""

    original: float
    rewritten: float
    passed: bool


class ClassProof(_Model):
    class_name: str
    path: str
    fp32: Figures | None
    bf16: Figures | None
    error: str | None
    no_bf16: str | None = None  # why not: the original itself does not run in bfloat16
    passed: bool


class DroppedInfo(_Model):
    class_name: str
    rule: str
    code: str
    figures: str


class ProofInfo(_Model):
    """What was shown with `--prove`."""

    how: str
    from_cache: bool
    classes: list[ClassProof]
    logits: Figures | None
    dropped: list[DroppedInfo]


class Report(_Model):
    """All that `autoport inspect` has to say about one model."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    model: ModelInfo
    versions: Versions
    target: Target
    classes: list[ClassInfo]
    rules: list[RuleInfo]
    tree: Node
    leftovers: list[Leftover]
    coverage: Coverage
    head: HeadInfo
    proof: ProofInfo | None
    roofline: RooflineInfo | None = Field(default=None, description="with --batch or --context")
    serving: ServingInfo | None = Field(default=None, description="with --buckets")
    seconds: dict[str, float]

    def class_of(self, class_id: str) -> ClassInfo:
        return self.by_id()[class_id]

    def by_id(self) -> dict[str, ClassInfo]:
        return {c.id: c for c in self.classes}

    def to_json(self) -> str:
        """The JSON text, indented by two, with a stable order of keys."""
        return self.model_dump_json(by_alias=True, indent=2)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the report."""
    return Report.model_json_schema(by_alias=True)
