"""Layers that write out something like attention, and must be refused: what each is and the operation to blame."""

from __future__ import annotations

from typing import Any

import torch

from tests.hosts.vllm.attention_zoo import HEADS, Layer


class OverQueries(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT + mask).softmax(-2) @ v


class ScalePerHead(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT * self.slopes[:, None, None]
        return (scores + mask).softmax(-1) @ v


class BothDirections(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT + mask * 0).softmax(-1) @ v


class HalfTheWeights(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        weights = (q @ k.mT + mask).softmax(-1)
        return (weights * 0.5) @ v


class BiasOfTokens(Layer):
    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(x)
        extra = self.gate(x).transpose(1, 2)[:, :, None]
        scores = q @ k.mT + extra
        return self.merge((scores + mask).softmax(-1) @ v)


class LearnedBias(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT + self.bias[..., : k.shape[-2]]
        return (scores + mask).softmax(-1) @ v


class NearOnBothSides(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        place = torch.arange(q.shape[-2], device=q.device)
        far = (place[:, None] - place).abs() > 4
        return (q @ k.mT).masked_fill(far, float("-inf")).softmax(-1) @ v


class Chunks(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        place = torch.arange(q.shape[-2], device=q.device)
        other = place[:, None] // 4 != place // 4
        return (q @ k.mT + mask).masked_fill(other, float("-inf")).softmax(-1) @ v


class Capped(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = torch.tanh(q @ k.mT / 20) * 20
        return (scores + mask).softmax(-1) @ v


class TwoProducts(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT + q @ v.mT
        return (scores + mask).softmax(-1) @ v


class NotItself(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        hidden = torch.ones(q.shape[-2], q.shape[-2], device=q.device).triu() > 0
        return (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v


class FirstAlways(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        shown = self.near[..., : q.shape[-2], : q.shape[-2]].clone()
        shown[..., 0] = True
        return (q @ k.mT).masked_fill(~shown, -1e9).softmax(-1) @ v


class SquareOfTheDistance(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        place = torch.arange(q.shape[-2], device=q.device)
        far = (place[:, None] - place).square() * -0.01
        return (q @ k.mT + far + mask).softmax(-1) @ v


class WindowPerHead(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        place = torch.arange(q.shape[-2], device=q.device)
        wide = torch.tensor([3, 4, 5, 6], device=q.device)[:, None, None]
        far = place[:, None] - place >= wide
        return (q @ k.mT + mask).masked_fill(far, float("-inf")).softmax(-1) @ v


class HiddenByScore(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT
        scores = scores.masked_fill(scores < 0, -1e9)
        return (scores + mask).softmax(-1) @ v


class SummedScores(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return ((q @ k.mT).cumsum(-1) + mask).softmax(-1) @ v


class WeakMask(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return (q @ k.mT + mask.clamp(min=-2000)).softmax(-1) @ v


class ScoresReadLater(Layer):
    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(x)
        scores = q @ k.mT + mask
        return self.merge(scores.softmax(-1) @ v), scores


class OtherNameReadLater(Layer):
    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(x)
        scores = q @ k.mT + mask
        gate = self.gate(x).mean(-1, keepdim=True)
        return self.merge(scores.softmax(-1) @ v) * gate


class ValuesBoundAgain(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = q @ k.mT + mask
        v = v * 2
        return scores.softmax(-1) @ v


class HeadByHead(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        parts = [(q[:, i] @ k[:, i].mT + mask[0]).softmax(-1) @ v[:, i] for i in range(HEADS)]
        return torch.stack(parts, 1)


def mixed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return (q @ k.mT + mask).softmax(-1) @ v


class InAFunction(Layer):
    def mix(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return mixed(q, k, v, mask)


# What each is refused for: a part of the reason, with the operation that is to blame.
LOOK_ALIKES: dict[type[Layer], str] = {
    OverQueries: "the softmax is not over the keys",
    ScalePerHead: "`mul` does more than scale the scores",
    BothDirections: "it sees later keys",
    HalfTheWeights: "`mul` changes the weights",
    BiasOfTokens: "`add` takes a value made from the tokens",
    LearnedBias: "made from the weights (it is learned)",
    NearOnBothSides: "it sees later keys",
    Chunks: "its mask is not causal with one window",
    Capped: "`tanh` does more than scale the scores",
    TwoProducts: "the sum of several products",
    NotItself: "its mask is not causal with one window",
    FirstAlways: "its mask is not causal with one window",
    SquareOfTheDistance: "not linear in the distance",
    WindowPerHead: "heads or sequences see different keys",
    HiddenByScore: "`lt` does more than scale the scores",
    SummedScores: "`cumsum` does more than scale the scores",
    WeakMask: "its mask neither shows nor hides a key",
    ScoresReadLater: "`add` is also read by other code",
    OtherNameReadLater: "`gate`, made between the products, is read after them",
    ValuesBoundAgain: "`v` is bound again between the products",
    HeadByHead: "4 attentions in one forward",
    InAFunction: "in a function, not in a method",
}
