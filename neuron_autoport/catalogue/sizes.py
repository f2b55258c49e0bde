"""The sizes that limits in the catalogue speak of, and the words a query may use for them."""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = ("trn2", "trn3")
PHASES = {
    "prefill": ("prefill", "context", "cte", "prompt"),
    "decode": ("decode", "generation", "tkg"),
    "training": ("training", "train"),
}


@dataclass(frozen=True)
class Size:
    """One size.

    Attributes:
        meaning: in words. Widths and head counts are those of one rank.
        words: other names for it, as a query may have them.
        model: a model's configuration tells it; else it differs from call to call.
    """

    meaning: str
    words: tuple[str, ...] = ()
    model: bool = True


SIZES = {
    "hidden": Size("width of the residual stream", ("h", "hidden_size", "d_model")),
    "width": Size("elements of a row", ("w",)),
    "intermediate": Size("inner width of an MLP", ("i", "intermediate_size", "ffn")),
    "expert_intermediate": Size("inner width of an expert", ("moe_intermediate_size",)),
    "qkv_width": Size("columns of the query/key/value product", ("f",)),
    "heads": Size("query heads", ("n", "nq", "num_heads", "q_heads")),
    "kv_heads": Size("key/value heads", ("nkv", "num_kv_heads")),
    "head_dim": Size("width of a query head", ("d", "d_head", "head_size")),
    "v_head_dim": Size("width of a value head", ("dv",)),
    "rotary_dim": Size("columns of a head that RoPE turns", ("rope_dim",)),
    "vocab": Size("rows of the embedding table", ("v", "vocab_size")),
    "experts": Size("experts of a layer", ("e", "num_experts")),
    "top_k": Size("experts of a token", ("k", "topk")),
    "window": Size("positions a query sees, itself among them", ("sliding_window",)),
    "dtype": Size("data type of the activations"),
    "batch": Size("sequences of a call", ("b",), model=False),
    "seq": Size("tokens of a sequence in a call", ("s", "seq_len", "sequence"), model=False),
    "tokens": Size("tokens of a call", ("t",), model=False),
    "new_tokens": Size("new tokens of a sequence in a decode call", (), model=False),
    "context": Size("keys a query may see", ("ctx", "context_len"), model=False),
    "block_size": Size("tokens of a cache block", ("block",), model=False),
    "segment": Size("tokens of a prefill segment", (), model=False),
    "cores": Size("physical cores of a logical core", ("lnc",), model=False),
    "tp": Size("tensor-parallel ranks"),
}
# What a size is taken for where it is not given itself.
STANDS_FOR = {"v_head_dim": "head_dim", "rotary_dim": "head_dim", "width": "hidden"}
BY_WORD = {w: name for name, size in SIZES.items() for w in (name, *size.words)}


def completed(sizes: dict[str, object]) -> dict[str, object]:
    """`sizes` with those that usually equal another one."""
    more = {n: sizes[o] for n, o in STANDS_FOR.items() if n not in sizes and o in sizes}
    return {**more, **sizes}
