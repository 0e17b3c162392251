"""The groups that a loss is made of, and the choices, under the names of the formulas."""

from __future__ import annotations

from dataclasses import dataclass

FAR = 20.0  # log-ratios beyond this are not exponentiated


@dataclass
class PlainGroup:
    """One prompt and its completions. A reward of None: this completion is not valid and takes part in nothing.

    `old_logprobs` None: the policy's own, detached, so every ratio is 1.
    `policy_weights[i][t]`: what the token's loss is multiplied by, without KL and entropy. None: 1.
    `sampler_logprobs`: as the sampler recorded them; dppo alone reads them.
    `trained[i][t]` False: the token is read but not trained (a tool's words). None: all are trained.
    """

    prompt: list[int]
    completions: list[list[int]]
    rewards: list[float | None]
    old_logprobs: list[list[float]] | None = None
    trained: list[list[bool]] | None = None
    policy_weights: list[list[float]] | None = None
    sampler_logprobs: list[list[float]] | None = None


CLIPS = {"gspo": (3e-4, 4e-4), "gmpo": (0.4, 0.4)}  # of the papers; 0.2 and 0.2 in all others


@dataclass
class PlainConfig:
    """The choices, under the names of the formulas. The defaults are oncurve's `grpo`."""

    temperature: float = 1.0
    scale: str = "group"  # divide by the standard deviation of: group | batch | none
    ddof: int = 1
    eps: float = 1e-6
    objective: str = "clipped"  # clipped | sequence_product | gspo | gmpo | cispo | sapo | dppo | reinforce
    clip_low: float | None = None  # None: the objective's own
    clip_high: float | None = None
    dual_clip: float | None = None
    delta: float | None = None
    tau_positive: float = 1.0  # sapo
    tau_negative: float = 1.05
    divergence: str = "tv"  # dppo: tv | kl
    trust_region: float = 0.2
    max_ratio: float = 20.0
    kl: str = "k3"  # k1 abs k2 k3 full k1+ abs+ k3+ ratio_k3
    kl_coef: float = 0.001
    entropy_coef: float = 0.0
    aggregation: str = "token-mean"
    kl_aggregation: str | None = None  # of the KL term alone; None: the same
    max_length: int = 1  # L of seq-mean-token-sum-norm

    @property
    def clip(self) -> tuple[float, float]:
        """(ε_low, ε_high)."""
        low, high = CLIPS.get(self.objective, (0.2, 0.2))
        return (low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high)
