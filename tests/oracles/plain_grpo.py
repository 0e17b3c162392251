"""The whole algorithm again: slow, obvious, in one file, and the judge of the fast one.

Written from the formulas of DeepSeekMath (arXiv:2402.03300), PPO (1707.06347), Dr.GRPO (2503.20783) and DAPO
(2503.14476), with Python loops over groups, completions and tokens. It imports nothing from oncurve.

Covered: outcome advantages (group, batch or no standard deviation), the clipped, sequence and reinforce objectives,
every KL estimator in the loss, the entropy bonus, all five aggregations, of the KL term too, gradient-norm clipping,
AdamW.
Not covered: sampling, process supervision, critics, sampler/learner correction, KL in the reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LogitsFn = Callable[[Tensor], Tensor]  # ids (1, n) -> logits (n, V): row j predicts the token at j + 1
FAR = 20.0  # log-ratios beyond this are not exponentiated


@dataclass
class PlainGroup:
    """One prompt and its completions. A reward of None: this completion is not valid and takes part in nothing.

    `old_logprobs` None: the policy's own, detached, so every ratio is 1.
    `trained[i][t]` False: the token is read but not trained (a tool's words). None: all are trained.
    """

    prompt: list[int]
    completions: list[list[int]]
    rewards: list[float | None]
    old_logprobs: list[list[float]] | None = None
    trained: list[list[bool]] | None = None


@dataclass
class PlainConfig:
    """The choices, under the names of the formulas. The defaults are oncurve's `grpo`."""

    temperature: float = 1.0
    scale: str = "group"  # divide by the standard deviation of: group | batch | none
    ddof: int = 1
    eps: float = 1e-6
    objective: str = "clipped"  # clipped | sequence | reinforce
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    delta: float | None = None
    kl: str = "k3"  # k1 abs k2 k3 full k1+ abs+ k3+ ratio_k3
    kl_coef: float = 0.001
    entropy_coef: float = 0.0
    aggregation: str = "token-mean"
    kl_aggregation: str | None = None  # of the KL term alone; None: the same
    max_length: int = 1  # L of seq-mean-token-sum-norm


def mean_and_std(values: Sequence[float], ddof: int) -> tuple[float, float]:
    """Two passes in float64; exactly 0 deviation when all values are the same."""
    mean = math.fsum(values) / len(values)
    if max(values) == min(values):
        return values[0], 0.0
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def advantages(rewards: list[list[float | None]], scale: str, ddof: int, eps: float) -> list[list[float | None]]:
    """A_i = (r_i - mean r) / (std + eps) over the valid rewards of the group; None where not valid.

    A group with fewer than two valid rewards teaches nothing: all of it is None. A constant group is exactly 0.
    """
    groups = [[r for r in group if r is not None] for group in rewards]
    usable = [r for group in groups if len(group) >= 2 for r in group]
    answer: list[list[float | None]] = []
    for group, valid in zip(rewards, groups, strict=True):
        if len(valid) < 2:
            answer.append([None] * len(group))
            continue
        mean, std = mean_and_std(valid, ddof)
        if max(valid) == min(valid):
            answer.append([None if r is None else 0.0 for r in group])
            continue
        divisor = {"group": std + eps, "batch": mean_and_std(usable, ddof)[1] + eps, "none": 1.0}[scale]
        answer.append([None if r is None else (r - mean) / divisor for r in group])
    return answer


def surrogate(ratio: Tensor, advantage: float, config: PlainConfig) -> Tensor:
    """-min(ρ Â, clip(ρ, 1-ε_low, 1+ε_high) Â); for Â < 0 never above -c Â (dual clip); ρ at most δ in the free term."""
    free = ratio if config.delta is None else torch.clamp(ratio, max=config.delta)
    clipped = torch.clamp(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    loss = torch.maximum(-advantage * free, -advantage * clipped)
    if advantage < 0 and config.dual_clip is not None:
        loss = torch.minimum(loss, torch.full_like(loss, -config.dual_clip * advantage))
    return loss


def k3(d: Tensor) -> Tensor:
    """e^-d + d - 1, and a straight line of the same slope beyond |d| = 20."""
    if abs(float(d.detach())) <= FAR:
        return torch.exp(-d) + d - 1.0
    edge = math.copysign(FAR, float(d.detach()))
    return (math.exp(-edge) + edge - 1.0) + (1.0 - math.exp(-edge)) * (d - edge)


def kl_term(kind: str, lp: Tensor, ref: Tensor, old: Tensor, log_p: Tensor, log_ref: Tensor) -> Tensor:
    """One token's KL. `lp, ref, old`: at the sampled token, `()`; `log_p, log_ref`: over the vocabulary, `(V,)`."""
    d = lp - ref
    if kind == "full":
        return (log_p.exp() * (log_p - log_ref)).sum()
    if kind == "ratio_k3":
        ratio = torch.exp(torch.clamp(lp - old, -FAR, FAR))
        if abs(float(d.detach())) <= FAR:
            return ratio * k3(d)
        return (ratio * k3(d)).detach() + (ratio * d).detach() * (lp - lp.detach())  # ∇(ρ·k3) = ρ·d, said directly
    if kind.endswith("+"):  # the value of one estimator, the gradient of k2
        value, pull = kl_term(kind[:-1], lp, ref, old, log_p, log_ref), d * d / 2.0
        return value.detach() + pull - pull.detach()
    return {"k1": lambda: d, "abs": lambda: d.abs(), "k2": lambda: d * d / 2.0, "k3": lambda: k3(d)}[kind]()


def log_distributions(logits_fn: LogitsFn, prompt: list[int], completion: list[int], temperature: float) -> Tensor:
    """(|o|, V): log π( . | q, o_<t) at the given temperature, in float64; row t is for completion token t."""
    logits = logits_fn(torch.tensor([prompt + completion]))
    rows = logits[len(prompt) - 1 : len(prompt) - 1 + len(completion)].double()
    return torch.log_softmax(rows / temperature, dim=-1)


def completion_losses(
    log_p: Tensor,
    log_ref: Tensor,
    ids: list[int],
    old: list[float] | None,
    trained: list[bool],
    advantage: float,
    config: PlainConfig,
) -> tuple[list[Tensor], list[Tensor]]:
    """The loss of each trained token of one completion, and its KL, before aggregation."""
    at = [t for t in range(len(ids)) if trained[t]]
    lp = {t: log_p[t, ids[t]] for t in at}
    old_lp = {t: lp[t].detach() if old is None else torch.tensor(old[t], dtype=torch.float64) for t in at}
    policy: dict[int, Tensor] = {}
    if config.objective == "sequence":  # ρ_i = exp Σ_t log ρ_it: one loss for the whole output, spread over its tokens
        log_ratio = torch.stack([lp[t] - old_lp[t] for t in at]).sum() if at else torch.zeros(())
        whole = surrogate(torch.exp(torch.clamp(log_ratio, -FAR, FAR)), advantage, config)
        policy = {t: whole / len(at) for t in at}
    for t in at:
        if config.objective == "clipped":
            policy[t] = surrogate(torch.exp(torch.clamp(lp[t] - old_lp[t], -FAR, FAR)), advantage, config)
        elif config.objective == "reinforce":
            policy[t] = -advantage * lp[t]

    kls = [kl_term(config.kl, lp[t], log_ref[t, ids[t]], old_lp[t], log_p[t], log_ref[t]) for t in at]
    return [policy[t] + config.entropy_coef * (log_p[t].exp() * log_p[t]).sum() for t in at], kls


def aggregate(rows: list[list[Tensor]], mode: str, max_length: int) -> Tensor:
    """One number from the token losses of every completion; a row without trained tokens counts nowhere."""
    rows = [row for row in rows if row]
    if not rows:
        return torch.zeros((), dtype=torch.float64)
    tokens = sum(len(row) for row in rows)
    sums = [torch.stack(row).sum() for row in rows]
    total = torch.stack(sums).sum()
    if mode == "token-mean":
        return total / tokens
    if mode == "token-sum":
        return total
    if mode == "seq-mean-token-sum":
        return total / len(rows)
    if mode == "seq-mean-token-mean":
        return torch.stack([s / len(row) for s, row in zip(sums, rows, strict=True)]).mean()
    if mode == "seq-mean-token-sum-norm":
        return total / (len(rows) * max_length)
    raise ValueError(f"unknown aggregation {mode!r}")


def reference_loss(
    logits_fn: LogitsFn, groups: Sequence[PlainGroup], config: PlainConfig, ref_logits_fn: LogitsFn | None = None
) -> Tensor:
    """The scalar loss to minimise, differentiable. The default reference: the policy itself, detached."""
    scored = advantages([group.rewards for group in groups], config.scale, config.ddof, config.eps)
    rows: list[tuple[list[Tensor], list[Tensor]]] = []
    for group, group_advantages in zip(groups, scored, strict=True):
        for i, ids in enumerate(group.completions):
            advantage = group_advantages[i]
            if advantage is None:
                continue
            log_p = log_distributions(logits_fn, group.prompt, ids, config.temperature)
            with torch.no_grad():
                log_ref = log_distributions(ref_logits_fn or logits_fn, group.prompt, ids, config.temperature)
            old = None if group.old_logprobs is None else group.old_logprobs[i]
            trained = [True] * len(ids) if group.trained is None else group.trained[i]
            rows.append(completion_losses(log_p, log_ref, ids, old, trained, advantage, config))
    losses = aggregate([row for row, _ in rows], config.aggregation, config.max_length)
    kls = aggregate([row for _, row in rows], config.kl_aggregation or config.aggregation, config.max_length)
    return losses + config.kl_coef * kls


@dataclass
class PlainAdamW:
    """Decoupled weight decay Adam (arXiv:1711.05101) on a list of parameters, formula by formula."""

    learning_rate: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    steps: int = 0
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def step(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
        """Update `parameters` in place; returns the norm of all gradients before clipping.

        Clipping is g · min(1, max / (norm + 1e-6)), torch's rule.
        """
        norm = math.sqrt(math.fsum(float((g.double() ** 2).sum()) for g in gradients))
        shrink = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + 1e-6))
        if not self.first:
            self.first = [torch.zeros_like(p) for p in parameters]
            self.second = [torch.zeros_like(p) for p in parameters]
        self.steps += 1
        for p, g, m, v in zip(parameters, gradients, self.first, self.second, strict=True):
            g = g * shrink
            m.copy_(self.beta1 * m + (1 - self.beta1) * g)
            v.copy_(self.beta2 * v + (1 - self.beta2) * g * g)
            m_hat, v_hat = m / (1 - self.beta1**self.steps), v / (1 - self.beta2**self.steps)
            p.mul_(1 - self.learning_rate * self.weight_decay)
            p.sub_(self.learning_rate * m_hat / (v_hat.sqrt() + self.epsilon))
        return norm


def reference_step(
    logits_fn: LogitsFn,
    parameters: Sequence[Tensor],
    groups: Sequence[PlainGroup],
    config: PlainConfig,
    optimizer: PlainAdamW,
    ref_logits_fn: LogitsFn | None = None,
) -> tuple[float, float]:
    """One update of `parameters`, in place. Returns (loss, gradient norm before clipping)."""
    loss = reference_loss(logits_fn, groups, config, ref_logits_fn)
    gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    known = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return float(loss.detach()), optimizer.step(parameters, known)
