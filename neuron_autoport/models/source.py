"""Resolve what the user typed as MODEL to a transformers configuration. No weights are ever read.

MODEL is a folder with a config.json, a bare model type (`qwen3`: its default configuration), or a
hub id `org/name`. Only a hub id uses the network. Everything a user can get wrong ends in a
ModelError that says what, where, and what to do next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from torch import nn
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from neuron_autoport.errors import ModelError
from neuron_autoport.models.failures import BUILD_ERRORS, build_failed, one_line
from neuron_autoport.models.hub import hub_answers
from neuron_autoport.models.kinds import architecture_of, refuse_encoder
from neuron_autoport.nearest import nearest

Kind = Literal["folder", "model_type", "hub"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")

_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ModelSource:
    """A model the user named, resolved to its configuration.

    Attributes:
        name: MODEL exactly as given.
        kind: how `name` was read.
        folder: the folder with the config.json; None for a model type or a hub id.
        config: the whole (possibly composite) configuration.
        text_config: the part that describes the text model; `config` itself where there is no part.
        architecture: class name of the causal language model.
        trust_remote_code: the user allowed the model's own code to run.
        prepare: changes each model right after it was built, with its attention as written; it gets the model and
        the attention implementation it is to have.
    """

    name: str
    kind: Kind
    folder: Path | None
    config: PretrainedConfig
    text_config: PretrainedConfig
    architecture: str
    trust_remote_code: bool = False
    prepare: Callable[[nn.Module, str | None], None] | None = None


def source_of_config(
    config: PretrainedConfig, name: str, *, trust_remote_code: bool = False
) -> ModelSource:
    """A model whose configuration a host has already read.

    Raises:
        ModelError: it is no decoder-only causal language model.
    """
    architecture = architecture_of(config, name, trust_remote_code)
    refuse_encoder(config, name)
    text = _text_config(config, name)
    return ModelSource(name, "folder", None, config, text, architecture, trust_remote_code)


def causal_model_types() -> list[str]:
    """All model types that transformers maps to a causal language model, sorted."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def load_model_config(model: str, *, trust_remote_code: bool = False) -> ModelSource:
    """Resolve MODEL to a configuration of a decoder-only causal language model.

    Args:
        model: folder, model type, or hub id.
        trust_remote_code: allow configuration and model code that comes with the model.

    Raises:
        ModelError: nothing by that name, an unreadable config.json, an architecture that is not a
            decoder-only causal language model, or code that may not be run.
    """
    kind, folder = _classify(model)
    if kind == "model_type":
        config = _default_config(model)
    else:
        file = folder / "config.json" if folder is not None else _hub_config_file(model)
        raw = _read_json(file)
        shown = str(file) if folder is not None else f"{model}/config.json"
        _check_raw(raw, shown, trust_remote_code)
        config = _auto_config(
            str(folder) if folder is not None else model, shown, trust_remote_code
        )
    text_config = _text_config(config, model)
    _check_depth(text_config, model)
    architecture = architecture_of(config, model, trust_remote_code)
    refuse_encoder(config, model)
    return ModelSource(model, kind, folder, config, text_config, architecture, trust_remote_code)


def _classify(model: str) -> tuple[Kind, Path | None]:
    path = Path(model).expanduser()
    if (path / "config.json").is_file():
        return "folder", path
    if model in CONFIG_MAPPING:
        return "model_type", None
    if path.is_dir():
        raise ModelError(
            "This folder has no config.json.",
            str(path),
            "put the model's config.json there, or name a model type: `autoport inspect qwen3`",
        )
    if path.is_file():
        raise ModelError(
            "MODEL is a folder, not a file.", str(path), f"autoport inspect {path.parent}"
        )
    if _HUB_ID.fullmatch(model):
        return "hub", None
    if "/" in model or model.startswith((".", "~")):
        raise ModelError("There is no such folder.", model, "autoport inspect FOLDER")
    raise _unknown_name(model, "There is no model type or folder of this name.", model)


def _nearest(name: str) -> list[str]:
    """Model types spelled most like `name`; also that of a class such as LlamaForCausalLM."""
    by_class = [t for t, cls in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if cls == name]
    wanted = name.lower().replace("-", "_").replace(".", "_")
    plain = {t.lower().replace("-", "_"): t for t in causal_model_types()}
    close = [plain[c] for c in nearest(wanted, plain, 3)]
    return list(dict.fromkeys(by_class + close))[:3]


def _unknown_name(name: str, what: str, where: str) -> ModelError:
    nearest = _nearest(name)
    hint = f"nearest model types: {', '.join(nearest)}. " if nearest else ""
    step = "Run `autoport inspect FOLDER` on a folder with a config.json"
    return ModelError(what, where, f"{hint}{step}, or name a hub id as org/name")


def _default_config(model_type: str) -> PretrainedConfig:
    try:
        config: PretrainedConfig = CONFIG_MAPPING[model_type]()
    except BUILD_ERRORS as err:
        what = f"The default configuration of `{model_type}`"
        raise build_failed(err, what=what, where=model_type) from err
    return config


def _hub_config_file(model: str) -> Path:
    """config.json of a hub id, from the local cache or the network."""
    step = "check the network or give a local folder: autoport inspect FOLDER"
    offline = "The hub cannot be reached (offline), and this is no folder nor in the local cache."
    if not hub_answers(model, "config.json"):
        raise ModelError(offline, model, step)
    try:
        return Path(hf_hub_download(model, "config.json"))
    except GatedRepoError as err:
        what = "This model is gated on the hub and the account in use may not read it."
        raise ModelError(what, model, "ask for access on its page, then `hf auth login`") from err
    except RepositoryNotFoundError as err:
        raise _unknown_name(
            model, "The hub has no model of this name, nor is it a folder.", model
        ) from err
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as err:
        raise ModelError(offline, model, step) from err
    except EntryNotFoundError as err:
        raise ModelError("This hub model has no config.json.", model, step) from err
    except (HfHubHTTPError, OSError) as err:
        raise ModelError(f"The hub cannot be reached: {one_line(err)}", model, step) from err


def _read_json(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as err:
        where = f"{file}:{err.lineno}:{err.colno}"
        raise ModelError(
            f"config.json is not JSON: {err.msg}.",
            where,
            f"mend it; check with `python -m json.tool {file}`",
        ) from err
    except RecursionError as err:
        raise ModelError(
            "config.json is nested too deeply to be read.", str(file), "replace the file"
        ) from err
    except (UnicodeDecodeError, OSError) as err:
        raise ModelError(
            f"config.json cannot be read: {one_line(err)}", str(file), "replace the file"
        ) from err
    if not isinstance(raw, dict):
        raise ModelError("config.json holds no object.", f"{file}:1:1", 'it must start with "{"')
    return raw


def _check_raw(raw: dict[str, Any], where: str, trust_remote_code: bool) -> None:
    """Refuse an unknown model type, and code of the model's own that may not be run."""
    auto_map = raw.get("auto_map")
    custom = isinstance(auto_map, dict) and bool(auto_map)
    model_type = raw.get("model_type")
    known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if known or (custom and trust_remote_code):
        return
    if custom:
        code = (
            ", ".join(sorted(str(v) for v in auto_map.values()))
            if isinstance(auto_map, dict)
            else ""
        )
        raise ModelError(
            f"This model comes with its own code ({code}), which is not run unless you allow it.",
            where,
            "read that code, then repeat the command with --trust-remote-code",
        )
    if not isinstance(model_type, str):
        raise ModelError(
            "config.json has no `model_type`, so its architecture is not known.",
            where,
            'add it, e.g. "model_type": "llama"',
        )
    raise _unknown_name(
        model_type, f"transformers does not know the model type `{model_type}`.", where
    )


def _auto_config(name: str, where: str, trust_remote_code: bool) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code
        )
    except OSError as err:  # transformers looked for a file of the model's own code
        what = f"A file that config.json names is not there: {one_line(err)}"
        raise ModelError(what, where, "put it beside config.json, or mend `auto_map`") from err
    except BUILD_ERRORS as err:
        raise build_failed(err, what="The configuration", where=where) from err
    return config


def _check_depth(config: PretrainedConfig, model: str) -> None:
    """Each layer is a module of its own, also without weights: a slip of the pen would fill memory."""
    depth = getattr(config, "num_hidden_layers", None)
    if isinstance(depth, int) and not 1 <= depth <= _MOST_LAYERS:
        what = f"A model of {depth} layers is not built: 1 to {_MOST_LAYERS} are."
        step = "set `num_hidden_layers` in its config.json, then repeat the command"
        raise ModelError(what, f"{model}, field `num_hidden_layers`", step)


def _text_config(config: PretrainedConfig, model: str) -> PretrainedConfig:
    try:
        text_config: PretrainedConfig = config.get_text_config()
    except ValueError as err:
        raise ModelError(
            f"The configuration has more than one text part: {one_line(err)}",
            model,
            "write the text part to a config.json of its own and run `autoport inspect FOLDER`",
        ) from err
    return text_config
