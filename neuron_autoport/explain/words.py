"""Words of the design and of the rule language, each explained once; the documentation is made from this."""

from __future__ import annotations

# Fields of a rule file are `rules.load_fields.FIELDS` and below `examples`; a test holds both together.
FIELDS: dict[str, str] = {
    "rule": (
        "Field of a rule file: the rule's name. Of two rules of one name the later source counts "
        "(`autoport explain sources`)."
    ),
    "summary": "Field of a rule file: one line that says what it matches.",
    "role": (
        "What a module is, given by the rule that matched all of it; by default the rule's name. "
        "Rules that are forms of one thing share a role: every RMSNorm has the role rms_norm. "
        "Another rule may ask for it: `where: {norm: rms_norm}`."
    ),
    "match": (
        "Field of a rule file: equations `name = expression` that are replaced. A name called "
        "like a function is an operation, or a module captured under `where`; any other name is a "
        "captured value, the same value wherever it stands again. Spelling does not count: `x * "
        "x`, `x.pow(2)` and `torch.square(x)` are all `square(x)`, sums and products match in "
        "either order, views that keep the last dimension are looked through, and so are casts "
        "unless the rule names one (`fp32`, `like`)."
    ),
    "given": "Field of a rule file: equations that must hold beside `match`, and stay as they are.",
    "where": (
        "Field of a rule file: what the captures are: linear, parameter, number, value (the "
        "default), a role, or a choice of operations with the text of each: `act: {silu: "
        "NF.ActFnType.SiLU}`."
    ),
    "require": (
        "Field of a rule file: conditions on what was captured, such as `x.ndim == 3` or "
        "`up.out_features == gate.out_features`. If one does not hold the match is refused "
        "(AP301). Names, attributes, numbers, comparison and arithmetic; nothing that could run "
        "code."
    ),
    "weights": (
        "Field of a rule file: weights made of captured ones: `qkv: stack(q, k, v)`, `gate, up: "
        "split(gate_up)`. Each has `.weight` [in, out] and `.bias` [1, out]."
    ),
    "replace": (
        "Field of a rule file: what stands there instead, `outputs = NF.function(...)`. It may "
        "call functions of NF and NK and a few methods that change layout or dtype, and read "
        "captured values, weights and shapes. A wrong argument is found when the file is read."
    ),
    "refuse": (
        "Field of a rule file, in place of `replace`: why there is no fused function for what "
        "matches. Nothing is changed, and reports name the place with AP402."
    ),
    "shard": (
        "Field of a rule file: how each weight is cut over tensor-parallel ranks: column, row, "
        "heads, or replicate (the default)."
    ),
    "neuron": (
        "Field of a rule file: limits of the target's kernel, conditions that may use `tp`. Where "
        "one does not hold the function's torch path runs (AP401)."
    ),
    "examples": (
        "Field of a rule file: its tests. `matches` are modules that must be fused, `rejects` "
        "modules that must not be. `autoport rules test` traces, matches, rewrites and proves "
        "each."
    ),
    "matches": (
        "Below `examples`: modules the rule must fuse. Each is Python text that sees torch, nn, "
        "F, math, ACT2FN and ALL_ATTENTION_FUNCTIONS; its last class counts."
    ),
    "rejects": (
        "Below `examples`: modules that look like the pattern and must be left alone, each with "
        "`because`."
    ),
    "because": "Of an example that must be rejected: why.",
    "source": "Of an example: its Python text.",
    "input": (
        "Of an example: the sizes of forward's arguments, [2, 5, 16] if not given; several as a "
        "list of lists."
    ),
    "init": "Of an example: keyword arguments its class is made with.",
}

CAPTURES: dict[str, str] = {
    "linear": (
        "A capture that is a child module and computes y = x @ W (+ b), whatever its class. Has "
        ".weight, .bias, .in_features, .out_features."
    ),
    "parameter": "A capture that is a parameter of the module itself.",
    "number": "A capture that is a number of the source or the configuration, such as an epsilon.",
    "float32": (
        "A capture that is a tensor in float32 in a model that is traced in bfloat16. A rule that has "
        "one looks at all casts."
    ),
    "value": (
        "A capture that is a tensor: what every name is that `where` does not speak of. Has "
        ".shape, .ndim, .dtype and .rows (the shape without its last dimension)."
    ),
    "column": "A shard: each rank has a part of the weight's outputs.",
    "row": (
        "A shard: each rank has a part of the weight's inputs; the results are added up over all "
        "ranks."
    ),
    "heads": (
        "A shard: each rank has whole heads of query, key and value; key heads are repeated if "
        "there are fewer than ranks."
    ),
    "replicate": "A shard: each rank has all of the weight.",
}

# Words of a pattern that are no operation of their own; all others are explained from the vocabulary.
PATTERN: dict[str, str] = {
    "after": (
        "`after(q)`: any value computed from q, and from no other output of the rule. For use in "
        "`given`."
    ),
    "past": (
        "`past(q)`: a value computed from q with no linear map or other product in between. For use "
        "in `given`."
    ),
    "unsqueeze": "`unsqueeze(x, d)`: x with a dimension of one put in at place d.",
    "first": "`first(x, n)`: the first n elements of the last dimension.",
    "rest": "`rest(x, n)`: the last dimension without its first n elements.",
    "cat": "`cat(a, b)`: a and b joined along the last dimension.",
    "even": "`even(x)`: elements 0, 2, 4, ... of the last dimension.",
    "odd": "`odd(x)`: elements 1, 3, 5, ... of the last dimension.",
    "heads_first": "`heads_first(x)`: x [B, T, N, D] as [B, N, T, D].",
    "rotate_half": "`rotate_half(x)`: the second half of the last dimension with its sign changed, then the first.",
    "rotate_pairs": "`rotate_pairs(x)`: -x1, x0, -x3, x2, ... along the last dimension.",
    "repeat_pairs": "`repeat_pairs(x)`: x0, x0, x1, x1, ... along the last dimension.",
    "pairs_as_complex": "`pairs_as_complex(x)`: neighbours of the last dimension as complex numbers.",
    "complex_as_pairs": "`complex_as_pairs(z)`: real and imaginary parts side by side.",
    "clamp": "`clamp(x, a, b)`: x cut to [a, b]; None for an end that is open.",
    "like": "`like(v, x)`: v cast to the dtype of x. A rule that names a cast sees all casts.",
    "fp32": "`fp32(x)`: x cast to float32. A rule that names a cast sees all casts.",
    "split": (
        "`a, b = split(p(x))`: slices of the last dimension that follow each other and fill it, "
        "cut by chunk, split or slicing."
    ),
    "cut": (
        "`q, k, v = cut(p(x))`: parts of a linear map's result that views, transpositions and "
        "slices lead to; each column is in exactly one of them, in whatever order."
    ),
    "attention": (
        "`attention(q, k, v)`: a call of the attention function that the configuration names."
    ),
}

WORDS: dict[str, str] = {
    "site": "One place in one module class where a rule matched and the source is rewritten.",
    "capture": "A named operation, module or value of a match.",
    "plan": (
        "All that will be changed, as data: sites, edits, new weights and where each comes from. As "
        "a shard: each part as the model's own tensor-parallel plan says."
    ),
    "leftover": "An operation that no rule claimed, shown with its share of FLOPs and bytes.",
    "host": "What runs the rewritten model: vLLM's engine, or the runner of the Neuron plugin.",
    "target": "The chip whose limits are judged: trn2, trn3; cpu has none.",
    "phase": (
        "Prefill (all tokens of a prompt at once) or decode (one token a step). A rule may have a "
        "replacement for each."
    ),
    "trace": (
        "The recorded operations of one forward, made by running it once on tensors without data; "
        "one for each class and configuration, not for each layer."
    ),
    "refusal": (
        "A rule that matched, or nearly matched, and was not used; it has a code, a place and a "
        "reason."
    ),
    "proof": (
        "Original and rewrite run on the same inputs with adversarial weights, in float32 and "
        "bfloat16. Each is compared with a more exact run of the original: the rewrite may err as "
        "much as the original does, not more. Nothing is used that was not proved."
    ),
    "NF": (
        "The fused functions of the vLLM Neuron plugin. Without a Neuron device a torch reference "
        "computes the same."
    ),
    "NK": "Operations of our own that NF has not: kernels, with a torch reference for any machine.",
    "tp": "Number of tensor-parallel ranks; in conditions under `neuron` a name for it.",
    "missing": "Of `rules test`: an example under `matches` that was not fused.",
    "noisy": "Of `rules test`: an example under `rejects` that was fused.",
    "failed": "Of `rules test`: an example whose rewrite computes something else (exit code 3).",
    "broken": "Of `rules test`: an example that does not run (exit code 2).",
}
