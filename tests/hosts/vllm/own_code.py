"""A model folder with a modeling file of its own: no class, rule or plan of transformers knows it.

Its layer is not Llama's: norm after the projections of q and k over the full width, an ungated MLP beside a gated one
whose output projection has a name of its own, a learned factor per channel on the residual. It declares no
tensor-parallel and no pipeline plan.
"""

from __future__ import annotations

import json
from pathlib import Path

CONFIGURATION = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own_code"

    def __init__(
        self, vocab_size=128, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, ff=96, eps=1e-5, max_position_embeddings=256, **kwargs
    ):
        self.vocab_size, self.hidden_size, self.ff, self.eps = vocab_size, hidden_size, ff, eps
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)
"""

MODELING = """
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_own import OwnConfig


class OwnNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def eager(module, query, key, value, attention_mask, scaling, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class OwnAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv = config.num_key_value_heads * self.head_dim
        self.wq = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.wk = nn.Linear(config.hidden_size, kv, bias=False)
        self.wv = nn.Linear(config.hidden_size, kv, bias=False)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.nq = OwnNorm(config.hidden_size, config.eps)
        self.nk = OwnNorm(kv, config.eps)

    def forward(self, x, tables, attention_mask=None, **kwargs):
        shape = (*x.shape[:-1], -1, self.head_dim)
        q = self.nq(self.wq(x)).view(shape).transpose(1, 2)
        k = self.nk(self.wk(x)).view(shape).transpose(1, 2)
        v = self.wv(x).view(shape).transpose(1, 2)
        cos, sin = tables
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        out, _ = attend(self, q, k, v, attention_mask, scaling=self.head_dim**-0.5, **kwargs)
        return self.wo(out.reshape(*x.shape[:-1], -1))


class OwnMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ff, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ff, bias=False)
        self.back = nn.Linear(config.ff, config.hidden_size, bias=False)

    def forward(self, x):
        return self.back(F.silu(self.gate(x)) * self.up(x))


class OwnSide(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.one = nn.Linear(config.hidden_size, config.ff, bias=True)
        self.two = nn.Linear(config.ff, config.hidden_size, bias=True)

    def forward(self, x):
        return self.two(torch.sin(self.one(x)))


class OwnLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.attention = OwnAttention(config, layer_idx)
        self.mlp, self.side = OwnMLP(config), OwnSide(config)
        self.n1 = OwnNorm(config.hidden_size, config.eps)
        self.n2 = OwnNorm(config.hidden_size, config.eps)
        self.factor = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x, tables, attention_mask=None, **kwargs):
        x = x * self.factor + self.attention(self.n1(x), tables, attention_mask, **kwargs)
        y = self.n2(x)
        return x + self.mlp(y) + self.side(y)


class OwnPreTrainedModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "trunk"
    _supports_attention_backend = True
    _supports_sdpa = True


class OwnModel(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(OwnLayer(config, i) for i in range(config.num_hidden_layers))
        self.last = OwnNorm(config.hidden_size, config.eps)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def set_input_embeddings(self, value):
        self.words = value

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None, **kwargs
    ):
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        mask = create_causal_mask(self.config, x, attention_mask, None, position_ids)
        half = self.config.hidden_size // self.config.num_attention_heads // 2
        rates = 10000.0 ** (-torch.arange(half, device=x.device).float() / half)
        angles = position_ids[..., None].float() * rates
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        tables = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        kwargs.pop("use_cache", None)
        kwargs.pop("return_dict", None)
        for block in self.blocks:
            x = block(x, tables, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.last(x))


class OwnForCausalLM(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.trunk = OwnModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.trunk.words

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        out = self.trunk(input_ids, attention_mask, position_ids, **kwargs)
        return CausalLMOutput(logits=self.lm_head(out.last_hidden_state))
"""

CONFIG = {
    "model_type": "own_code",
    "architectures": ["OwnForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModel": "modeling_own.OwnModel",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    },
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_own_model(folder: Path) -> Path:
    """The folder, with code, configuration and adversarial weights in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from neuron_autoport.models.weights import adversarial_

    target = folder / "own_code"
    target.mkdir(parents=True)
    (target / "configuration_own.py").write_text(CONFIGURATION, encoding="utf-8")
    (target / "modeling_own.py").write_text(MODELING, encoding="utf-8")
    (target / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    config = AutoConfig.from_pretrained(target, trust_remote_code=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=True)
    adversarial_(model)
    model.save_pretrained(target)
    (target / "config.json").write_text(
        json.dumps(CONFIG | config.to_dict() | {"auto_map": CONFIG["auto_map"]}), encoding="utf-8"
    )
    return target
