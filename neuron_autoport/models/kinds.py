"""What kind of model a configuration asks for: a decoder-only causal language model, or not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from neuron_autoport.errors import ModelError
from neuron_autoport.models.unlisted import list_named

CAUSAL_AUTO = "AutoModelForCausalLM"


def architecture_of(config: PretrainedConfig, model: str, trust_remote_code: bool) -> str:
    """Class name of the causal language model, as AutoModelForCausalLM would choose it.

    One that it does not list, but the checkpoint names, is listed there: see `unlisted.py`.
    """
    if config.is_encoder_decoder:
        raise ModelError(
            f"`{config.model_type}` is an encoder-decoder; only decoder-only models are ported.",
            f"{model}, field `is_encoder_decoder`",
            "choose a decoder-only model; `autoport inspect qwen3` shows one",
        )
    auto_map = getattr(config, "auto_map", None) or {}
    if CAUSAL_AUTO in auto_map and trust_remote_code:
        return str(auto_map[CAUSAL_AUTO]).rsplit(".", 1)[-1]
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if isinstance(name, str):
        return name
    named = list_named(config)
    if named is not None:
        return named
    if CAUSAL_AUTO in auto_map:
        raise ModelError(
            f"The causal language model of `{config.model_type}` comes as code with the model.",
            model,
            "read that code, then repeat the command with --trust-remote-code",
        )
    inner = config.get_text_config().model_type
    step = "name a causal language model, or run `autoport inspect FOLDER` on one's folder"
    if inner != config.model_type and inner in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        step = (
            f"write its text part (model type `{inner}`) to a config.json of its own and run "
            "`autoport inspect FOLDER` on that folder"
        )
    what = f"`{config.model_type}` is not a causal language model (no {CAUSAL_AUTO} for it)."
    raise ModelError(what, model, step)


def _reads_is_decoder(config: PretrainedConfig) -> bool:
    """True if the modeling code of this configuration decides something by `config.is_decoder`.

    Some decoder-only configurations carry the field without any meaning, so its value alone says
    nothing.
    """
    module = type(config).__module__.replace("configuration_", "modeling_")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return True
    text = Path(spec.origin).read_text(encoding="utf-8")
    return re.search(r"config\.is_decoder(?!\s*=[^=])", text) is not None


def refuse_encoder(config: PretrainedConfig, model: str) -> None:
    """Refuse a configuration that asks for a bidirectional encoder."""
    if getattr(config, "is_decoder", None) is False and _reads_is_decoder(config):
        field, wanted = "is_decoder", '"is_decoder": true'
    elif getattr(config, "causal", None) is False:
        field, wanted = "causal", '"causal": true'
    elif getattr(config, "attn_type", None) == "bi":
        field, wanted = "attn_type", '"attn_type": "uni"'
    else:
        return
    raise ModelError(
        f"This `{config.model_type}` configuration is an encoder, not a causal language model.",
        f"{model}, field `{field}`",
        f"if it was trained as a decoder, write {wanted} in a config.json and run "
        "`autoport inspect FOLDER` on its folder",
    )
