"""What reason codes mean for whoever reads them: more than the one line of `reasons.CODES`, an example, a way on.

An example is run by the tests: its module must give the code, at the line with the mark `# <-` if there is one. It
sees what examples of rule files see (torch, nn, F, ...). `rule` is text of a rule file; without it the built-in
rules are tried. A code that no single module can give has an example in words.
"""

from __future__ import annotations

from dataclasses import dataclass

MARK = "# <-"


@dataclass(frozen=True)
class CodeHelp:
    """about: why it is so. source: a module that gives the code; words: where none can. next: what to do."""

    about: str
    next: tuple[str, ...]
    source: str = ""
    rule: str = ""
    words: str = ""


_MLP = """\
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
"""


def _mlp(body: str) -> str:
    """A gated MLP whose forward is `body`."""
    return _MLP + "".join(f"        {line}\n" for line in body.splitlines())


_PRODUCT = """\
class Product(nn.Module):
    def forward(self, x, y):
        return torch.exp(x) * y  # <-
"""
_RULE = """\
rule: exp_times
summary: exp(x) * y
match: z = exp(x) * y
"""

CODE_HELP: dict[str, CodeHelp] = {
    "AP101": CodeHelp(
        "A forward is read by running it once on tensors that have sizes but no values. Where Python asks for "
        "a value, there is none to answer with, and what is computed after it is not known. What was found "
        "before is not used either: code that was not seen might read it. An `if` on a tensor is not taken; but what "
        "it chooses beside tensors, a number or a function, is no constant that a fused call could be given.",
        (
            "compute it with tensors: torch.where in place of `if`, `x / x.amax()` in place of `.item()`",
            "or move the part that needs the value into a child module: its caller is then traced past it",
        ),
        _mlp("peak = x.abs().max().item()  # <-\n"
             "return self.down(F.silu(self.gate(x)) * self.up(x)) / peak"),
    ),
    "AP102": CodeHelp(
        "A forward is read by running it once on tensors without data. This one raised an error there: it "
        "leaves torch, is written for one device, or was given sizes that it does not take.",
        (
            "run the module by itself on a CPU tensor of the same size: an error there is its own",
            "if it runs there: keep to torch operations that work for every device",
        ),
        _mlp("x = torch.from_numpy(x.float().numpy())  # <-\n"
             "return self.down(F.silu(self.gate(x)) * self.up(x))"),
    ),
    "AP201": CodeHelp(
        "A fused function gives its result and nothing from inside. Code that stays reads a value that would "
        "no longer be computed.",
        (
            "if the other use is only a check or a debug output: take it out",
            "if it is needed: write a rule that has this value as an output, too (`autoport explain match`)",
        ),
        _mlp("inner = F.silu(self.gate(x)) * self.up(x)\n"
             "return self.down(inner), inner.mean()  # <-"),
    ),
    "AP202": CodeHelp(
        "The source expression that computes the match computes something else, too. Replacing it would lose "
        "that, and a part of an expression inside a call cannot be replaced.",
        ("give the other part a statement of its own: one computation per line",),
        _mlp("return self.down(F.silu(self.gate(x)) * self.up(h := x)) + h  # <-"),
    ),
    "AP203": CodeHelp(
        "The weights of a captured module move into one fused weight, and the module goes. Code that stays "
        "calls it, or reads one of its attributes. Forward hooks on it are such code, too: they would run no more.",
        (
            "read what is needed elsewhere: the dtype from the input, sizes from the configuration",
            "if the module really serves twice it has to stay: nothing to be done",
            "take hooks off (`handle.remove()`), or put them on the module that holds the site",
        ),
        _mlp("y = self.down(F.silu(self.gate(x)) * self.up(x))\n"
             "return y.to(self.gate.weight.dtype)"),
    ),
    "AP204": CodeHelp(
        "A value of the match, or memory it shares, is changed in place while the match is computed. The fused "
        "call reads everything at one moment: before or after the change, not both.",
        ("write `x = x + 1` in place of `x += 1` or `x.add_(1)`",),
        _mlp("rows = x.view(-1, 16)\n"
             "gate = self.gate(x)\n"
             "rows[:, 0] = 0  # <-\n"
             "return self.down(F.silu(gate) * self.up(x))"),
    ),
    "AP205": CodeHelp(
        "One part of the match runs under a condition that another does not run under. A single call can stand "
        "in one place only.",
        ("compute the whole of it in one branch, or outside of the branches",),
        _mlp("gate = self.gate(x)\n"
             "if x.shape[0] > 1:\n"
             "    gate = F.silu(gate)  # <-\n"
             "return self.down(gate * self.up(x))"),
    ),
    "AP206": CodeHelp(
        "The source expression ran several times in one forward, or the module is called in two ways that are "
        "rewritten differently. One text cannot be both.",
        ("take the loop apart, or put its body into a child module: each call of that is looked at by itself",),
        _mlp("for _ in range(2):\n"
             "    x = self.down(F.silu(self.gate(x)) * self.up(x))  # <-\n"
             "return x"),
    ),
    "AP207": CodeHelp(
        "The fused call needs a value that has no name where the call would stand: it was made inside of "
        "another expression, or would have to be computed at another place than now.",
        ("give the value a name, on a line of its own: `x = x * 2`, then `wide = x.float()`",),
        "class Norm(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(16))\n\n"
        "    def forward(self, x):\n"
        "        wide, twice = (x * 2).float(), x + x  # <-\n"
        "        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
        "        return self.weight * wide.to(x.dtype) + twice\n",
    ),
    "AP208": CodeHelp(
        "The text of the forward cannot be had or changed: a lambda or comprehension, a class made inside of a "
        "function, `super()`, a name from an enclosing function, an augmented assignment.",
        ("write the computation as plain statements in a forward of a class at the top of its file",),
        _mlp("work = lambda h: self.down(F.silu(self.gate(h)) * self.up(h))  # <-\nreturn work(x)"),
    ),
    "AP209": CodeHelp(
        "The fused call would read a name later (or earlier) than the code did, and in between the name gets "
        "another value; or the match reads one value under two names that hold two on a path that was not taken; or "
        "a size, such as the number of tokens, decides which number or function it holds.",
        (
            "use another name for the other value",
            "let an attribute of the module decide, in place of a size of the input",
        ),
        _mlp("gate = F.silu(self.gate(x))\n"
             "inner = gate * self.up(x)\n"
             "x = x * 2\n"
             "return self.down(inner) + x"),
    ),
    "AP210": CodeHelp(
        "A part of the pattern was found, then something else stood where the pattern goes on, or all of its "
        "operations with other casts. It is the attempt that got furthest. Told are those past half of the pattern, "
        "and the nearest rule of a norm or rotation that no rule takes.",
        (
            "compare the marked expression with `autoport explain RULE`",
            "if the rule should have matched: write it as a rule of your own (`autoport rules new`)",
        ),
        _mlp("return self.down(F.silu(self.gate(x)) * self.up(x + 1))  # <-"),
    ),
    "AP220": CodeHelp(
        "The block calls experts, but its router, its experts or what it adds to them is computed in a way "
        "that none of the known formulas has. It is left as it is; on vLLM's engine its own code routes.",
        (
            "the marked expression is the first one, from the experts back, that no formula has",
            "write it as a known formula if it is one: score, top-k, weights divided by their sum",
        ),
        words="`w, i = logits.softmax(-1).topk(2)`, then `w = w.exp()`: `exp` stands between the chosen "
        "scores and the weights of the experts.",
    ),
    "AP301": CodeHelp(
        "All of the pattern is there, but a condition under `require` of the rule is not met: the replacement "
        "is right for other sizes or ranks only.",
        ("`autoport explain RULE` shows the conditions; a rule of your own may ask for others",),
        _PRODUCT,
        _RULE + "replace: z = NK.rms_norm(x) * y\nrequire:\n  - x.ndim == 2\n",
    ),
    "AP302": CodeHelp(
        "The configuration tells how many of a head's channels are rotated, and its code rotates another number. "
        "Most often the code does not read the field: the model then runs, and writes nonsense.",
        ("look at what sets the width of cos and sin, and at the release of transformers the checkpoint was made for",),
        words="`partial_rotary_factor: 0.25` with heads of 64, and a rotary embedding of 64 channels in place of 16.",
    ),
    "AP401": CodeHelp(
        "The site is rewritten and calls the fused function. For these sizes the target's kernel does not "
        "take it, so there the function's torch path runs: right, but not fused. Such sites have the sign ▲.",
        (
            "the report says from how many tensor-parallel ranks (--tp) the limit holds, if it ever does",
            "--target cpu leaves the limits out",
        ),
        "class Norm(nn.Module):\n    def forward(self, x):\n        return x * torch.rsqrt("
        "x.pow(2).mean(-1, keepdim=True) + 1e-6)  # <-\n",
        "rule: plain_norm\nsummary: RMSNorm without a weight\n"
        "match: y = x * rsqrt(mean(square(x), -1, keepdim=True) + eps)\nwhere:\n  eps: number\n"
        "replace: y = NK.rms_norm(x, eps=eps)\nneuron:\n  - x.shape[-1] % 128 == 0\n",
    ),
    "AP402": CodeHelp(
        "A rule knows this computation, and says (`refuse`) that there is no fused function for it yet.",
        (
            "if you have one: a rule of the same name with `replace` takes this one's place",
            "`autoport rules new` starts a rule in this way",
        ),
        _PRODUCT,
        _RULE + "refuse: there is no fused function for this yet\n",
    ),
    "AP410": CodeHelp(
        "On vLLM's engine the attention of a layer runs in vLLM's own layer, with its paged cache of keys and "
        "values. It knows a scale, a window or chunks, a soft-cap, sinks and ALiBi slopes; a layer that attends "
        "several times has a cache for each call, and chunks must be whole blocks of the cache. What else a model "
        "hands to its attention (a mask or a bias it computes itself) would be left out, and a call that is made "
        "for some numbers of tokens only would miss keys. Such a model runs each request alone, with transformers' "
        "own cache or read again at every step, if its small model is right so; the log of the start says which and "
        "why. This is slow. What is right in neither way, and a window or a head size that vLLM cannot have, is "
        "refused before weights are read.",
        (
            "`autoport inspect MODEL` shows the layer's graph",
            "vLLM's own class for the architecture, if it has one: vllm serve MODEL --model-impl vllm",
        ),
        words="A layer that masks keys by a function of the values themselves.",
    ),
    "AP411": CodeHelp(
        "An engine shows a model a few tokens at a time: what one token takes from earlier ones must come from a "
        "cache. vLLM has one for attention that goes through transformers' attention interface, and one for states "
        "that go through the interface of transformers' cache (`update_conv_state`, `update_recurrent_state`). "
        "Attention that a layer writes out (two products and a softmax between them) is first made a call of that "
        "interface, if its graph is that of causal attention: one scale, one window, ALiBi or no bias; the message "
        "names the operation that is something else. Then a small model of the same kind is run with attention and "
        "states silenced; if a token still reaches a later one, something else looks back (a token shift, an "
        "indexer, a learned bias). So it does if a token's row among those of a step is taken for its position, unless "
        "the layer has it from a call of `torch.arange` in its own forward. Such a model runs each request alone, with "
        "transformers' own cache or read again at every step, if its small model is right so: the log of the start "
        "says which and why. It is slow, and parallel ranks, LoRA, speculation and transfer of caches are not for it. "
        "What is right in neither way is refused. No engine can make right what is not the same twice in transformers: "
        "random numbers drawn anew at every run, something kept of an earlier request. The message says so, and the "
        "line that draws them.",
        (
            "what is drawn anew at every run: a configuration may have a seed for it, and a size that it else takes "
            "from the first request: vllm serve MODEL --hf-overrides '{\"FIELD\": NUMBER}'",
            "vLLM's own class for the architecture, if it has one: vllm serve MODEL --model-impl vllm",
            "code of your own: call `ALL_ATTENTION_FUNCTIONS.get_interface(...)` instead of writing the softmax out",
        ),
        words="Attention written as `softmax(q @ k.mT + self.learned_bias) @ v` in the layer's forward.",
    ),
    "AP412": CodeHelp(
        "vLLM builds the base model of a decoder-only text model and one linear layer for its logits, with a factor "
        "and a soft-cap. transformers must list a causal language model for the configuration's type, or the "
        "checkpoint name one in `architectures` that is for just this configuration. A class of code that comes with "
        "the model must be derived from PreTrainedModel: without it there are no known places for cache, "
        "attention and head, and such a model is inspected but neither ported nor served. Between its "
        "base model and that layer only modules of one input each may stand, which work on every row by itself.",
        (
            "name the checkpoint of a causal language model; `autoport inspect MODEL` says what it is",
            "vLLM's own class for the architecture, if it has one: vllm serve MODEL --model-impl vllm",
            "code of your own: derive it from PreTrainedModel and call `ALL_ATTENTION_FUNCTIONS.get_interface(...)`",
        ),
        words="A head `decoder(tanh(hidden))`: the `tanh` is no module that could be kept before `decoder`.",
    ),
    "AP501": CodeHelp(
        "Tensor parallelism gives each rank an equal part of a weight: of its columns, its rows, or its heads.",
        ("choose a number of ranks that divides heads and widths: `autoport inspect MODEL --tp N`",),
        words="12 query heads over 8 ranks: 12 / 8 is no whole number of heads.",
    ),
    "AP601": CodeHelp(
        "Some packed projections have their columns by heads, and the fused call wants all queries, then all keys, "
        "then all values. Weights are put into that order as they are loaded. Scales of quantized weights and LoRA "
        "adapters are saved for the order of the checkpoint and would be taken for other columns.",
        ("serve without quantization or adapters", "vllm serve MODEL --model-impl transformers"),
        words="A quantized GPT-NeoX: its `query_key_value` has q, k and v of each head together.",
    ),
    "AP701": CodeHelp(
        "Original and rewrite ran on the same inputs, and the rewrite was further from the exact result than "
        "the original is. It is not used. The rule is wrong for this module: a condition is missing, or "
        "`replace` says something else than `match`.",
        (
            "`autoport rules test FILE --trust-remote-code` runs the rule's own examples",
            "`autoport inspect FILE.py:CLASS --input 2,8,64 --rules DIR --diff` shows the rewrite of one module",
        ),
        "class Norm(nn.Module):\n    def forward(self, x):\n        return x * torch.rsqrt("
        "x.pow(2).mean(-1, keepdim=True) + 1e-6)\n",
        "rule: plain_norm\nsummary: a norm with a wrong epsilon\n"
        "match: y = x * rsqrt(mean(square(x), -1, keepdim=True) + eps)\nwhere:\n  eps: number\n"
        "replace: y = NK.rms_norm(x, eps=eps * 100)\n",
    ),
    "AP702": CodeHelp(
        "Nothing is used that was not compared with the original. Here that could not be done: the module could "
        "not be made with real weights, or has too many of them for this machine.",
        ("give a smaller configuration: the same code is proved at small sizes",),
        words="A class with 200 million parameters, of a model for which no small configuration is known.",
    ),
}  # fmt: skip
