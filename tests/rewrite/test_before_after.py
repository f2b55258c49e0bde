"""Source before and after each built-in rule; comments and layout of what stays are kept."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers import plan_of, proof_of, zoo_class

MLP = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(W, I), nn.Linear(W, I, bias=False)
        self.down_proj = nn.Linear(I, W)
        self.both = nn.Linear(W, 2 * I, bias=False)
        self.act_fn = nn.SiLU()
"""
NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))
        self.eps = 1e-6
"""
ATTENTION = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.q_proj, self.o_proj = nn.Linear(W, W), nn.Linear(W, W, bias=False)
        self.k_proj, self.v_proj = nn.Linear(W, 8), nn.Linear(W, 8)
        self.qkv = nn.Linear(W, 32, bias=False)
"""
# (rule, the class's start, forward before, forward after)
TEXTS = [
    (
        "gated_mlp",
        MLP,
        """
        def forward(self, x):
            # The usual.
            down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
            return down_proj  # done
        """,
        """
        def forward(self, x):
            # The usual.
            # autoport: gated_mlp
            down_proj = NF.mlp(
                x.flatten(0, -2),
                self.gate_proj_weight,
                self.up_proj_weight,
                self.down_proj_weight,
                act_fn=NF.ActFnType.SiLU,
                gate_b=self.gate_proj_bias,
                down_b=self.down_proj_bias,
            ).unflatten(0, x.shape[:-1])
            return down_proj  # done
        """,
    ),
    (
        "gated_mlp",
        MLP,
        '''
        @torch.no_grad()
        def forward(self, x, *, scale: float = 2.0):
            """Text."""
            # Above the first.
            g = self.gate_proj(x)  # beside the first

            # Above the second.
            u = self.up_proj(x)
            if scale:   # odd   spacing   stays
                pass
            g = self.act_fn(g)
            # Above the result.
            return scale * self.down_proj(
                # Inside the result.
                g * u
            )
            # At the end.
        ''',
        '''
        @torch.no_grad()
        def forward(self, x, *, scale: float = 2.0):
            """Text."""
            # Above the first.
            # beside the first
            # Above the second.
            if scale:   # odd   spacing   stays
                pass
            # Above the result.
            # Inside the result.
            # autoport: gated_mlp
            return scale * NF.mlp(
                x.flatten(0, -2),
                self.gate_proj_weight,
                self.up_proj_weight,
                self.down_proj_weight,
                act_fn=NF.ActFnType.SiLU,
                gate_b=self.gate_proj_bias,
                down_b=self.down_proj_bias,
            ).unflatten(0, x.shape[:-1])
            # At the end.
        ''',
    ),
    (
        "gated_mlp_packed",
        MLP,
        """
        def forward(self, x):
            up = self.both(x)

            gate, up = up.chunk(2, dim=-1)
            up = up * F.gelu(gate, approximate="tanh")
            y = self.down_proj(up)
            return y
        """,
        """
        def forward(self, x):
            # autoport: gated_mlp_packed
            y = NF.mlp(
                x.flatten(0, -2),
                self.gate_weight,
                self.up_weight,
                self.down_proj_weight,
                act_fn=NF.ActFnType.GELU_Tanh_Approx,
                down_b=self.down_proj_bias,
            ).unflatten(0, x.shape[:-1])
            return y
        """,
    ),
    (
        "rms_norm",
        NORM,
        """
        def forward(self, hidden_states):
            input_dtype = hidden_states.dtype
            hidden_states = hidden_states.to(torch.float32)
            variance = hidden_states.pow(2).mean(-1, keepdim=True)
            hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
            return self.weight * hidden_states.to(input_dtype)
        """,
        """
        def forward(self, hidden_states):
            # autoport: rms_norm
            return NK.rms_norm(hidden_states, self.weight, eps=1e-06)
        """,
    ),
    (
        "rms_norm_fp32_weight",
        NORM,
        """
        def forward(self, x):
            dtype = x.dtype
            x = x.float()
            # the statistics
            v = x.pow(2).mean(-1, keepdim=True)
            x = x * torch.rsqrt(v + self.eps)
            x = (self.weight * x).to(dtype)
            return x
        """,
        """
        def forward(self, x):
            # the statistics
            # autoport: rms_norm_fp32_weight
            x = NK.rms_norm(x, self.weight, eps=1e-06, weight_in_fp32=True)
            return x
        """,
    ),
    (
        "rms_norm_zero_centered",
        NORM,
        """
        def forward(self, x):
            output = self._norm(x.float())
            # Llama does x.to(float16) * w whilst this is (x * w).to(float16)
            output = output * (1.0 + self.weight.float())
            return output.type_as(x)

        def _norm(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        """,
        """
        def forward(self, x):
            # Llama does x.to(float16) * w whilst this is (x * w).to(float16)
            # autoport: rms_norm_zero_centered
            return NK.rms_norm(x, self.weight, eps=1e-06, offset=1.0, weight_in_fp32=True)
        """,
    ),
    (
        "rms_norm_weightless",
        NORM,
        """
        def forward(self, x):
            v = x.float()
            y = (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 0.5)).to(x.dtype)
            return y if x.ndim == 3 else x
        """,
        """
        def forward(self, x):
            # autoport: rms_norm_weightless
            y = NK.rms_norm(x, eps=0.5)
            return y if x.ndim == 3 else x
        """,
    ),
    (
        "o_proj,qkv_proj",
        ATTENTION,
        """
        def forward(self, x):
            shape = (*x.shape[:-1], -1, D)
            # Heads.
            query = self.q_proj(x).view(shape).transpose(1, 2)
            key = self.k_proj(x).view(shape).transpose(1, 2)  # fewer
            value = self.v_proj(x).view(shape).transpose(1, 2)

            out, weights = attend(self, query, key, value)
            # Back.
            out = out.reshape(*x.shape[:-1], -1).contiguous()
            out = self.o_proj(out)
            return out
        """,
        """
        def forward(self, x):
            shape = (*x.shape[:-1], -1, D)
            # Heads.
            # autoport: qkv_proj
            q, k, v = NF.qkv_proj(x, self.qkv_weight, bias=self.qkv_bias).split(self.qkv_sizes, dim=-1)
            query = q.view(shape).transpose(1, 2)
            key = k.view(shape).transpose(1, 2)  # fewer
            value = v.view(shape).transpose(1, 2)

            out, weights = attend(self, query, key, value)
            # Back.
            out = out.reshape(*x.shape[:-1], -1).contiguous()
            # autoport: o_proj
            out = NF.o_proj(out, self.o_proj_weight)
            return out
        """,
    ),
    (
        "o_proj,qkv_proj_packed",
        ATTENTION,
        """
        def forward(self, x):
            b, s, _ = x.shape
            parts = self.qkv(x)
            q = parts[..., :16].view(b, s, -1, D)
            k = parts[..., 16:24].view(b, s, -1, D)
            v = parts[..., 24:].view(b, s, -1, D)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return self.o_proj(
                attend(self, q, k, v)[0]
                .reshape(b, s, -1)
            )
        """,
        """
        def forward(self, x):
            b, s, _ = x.shape
            # autoport: qkv_proj_packed
            q_, k_, v_ = NF.qkv_proj(x, self.qkv_weight).split(self.qkv_sizes, dim=-1)
            q = q_.view(b, s, -1, D)
            k = k_.view(b, s, -1, D)
            v = v_.view(b, s, -1, D)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            # autoport: o_proj
            return NF.o_proj(attend(self, q, k, v)[0].reshape(b, s, -1), self.o_proj_weight)
        """,
    ),
]


@pytest.mark.parametrize(("rules", "start", "before", "after"), TEXTS, ids=[t[0] for t in TEXTS])
def test_text(rules: str, start: str, before: str, after: str) -> None:
    forward = textwrap.dedent(before).strip("\n")
    cls = zoo_class(start + "\n" + textwrap.indent(forward, "    ") + "\n")
    plan = plan_of(cls)
    assert ",".join(sorted(s.rule.name for s in plan.sites)) == rules, plan.refusals
    new = plan.new_source()
    assert new is not None
    # The new text is the function alone: a helper after it in the class stays where it is.
    assert textwrap.dedent(new).strip("\n") == textwrap.dedent(after).strip("\n")
    assert proof_of(cls, plan).passed
