"""The loss of a batch of groups, and one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oracles.plain_grpo.adamw import PlainAdamW
from oracles.plain_grpo.advantages import advantages
from oracles.plain_grpo.aggregation import aggregate
from oracles.plain_grpo.kl import kl_term
from oracles.plain_grpo.objectives import OBJECTIVES
from oracles.plain_grpo.settings import PlainConfig, PlainGroup

LogitsFn = Callable[[Tensor], Tensor]  # ids (1, n) -> logits (n, V): row j predicts the token at j + 1


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
    weights: list[float] | None = None,
    sampler: list[float] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The loss of each trained token of one completion, and its KL, before aggregation."""
    at = [t for t in range(len(ids)) if trained[t]]
    lp = [log_p[t, ids[t]] for t in at]
    old_lp = [
        p.detach() if old is None else torch.tensor(old[t], dtype=torch.float64) for t, p in zip(at, lp, strict=True)
    ]
    before = old_lp
    if config.objective == "dppo" and old is not None:  # its ratio is to the sampler, whatever the old policy is
        before = [torch.tensor(sampler[t], dtype=torch.float64) for t in at]
    policy = OBJECTIVES[config.objective](lp, before, advantage, config)
    if weights is not None:
        policy = [weights[t] * loss for t, loss in zip(at, policy, strict=True)]
    bonus = [config.entropy_coef * (log_p[t].exp() * log_p[t]).sum() for t in at]  # -α H
    kls = [
        kl_term(config.kl, p, log_ref[t, ids[t]], o, log_p[t], log_ref[t])
        for t, p, o in zip(at, lp, old_lp, strict=True)
    ]
    return [loss + term for loss, term in zip(policy, bonus, strict=True)], kls


def reference_rows(
    logits_fn: LogitsFn, groups: Sequence[PlainGroup], config: PlainConfig, ref_logits_fn: LogitsFn | None = None
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """The losses and the KLs of every completion's trained tokens. The default reference: the policy, detached."""
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
            sampler = None if group.sampler_logprobs is None else group.sampler_logprobs[i]
            weights = None if group.policy_weights is None else group.policy_weights[i]
            rows.append(completion_losses(log_p, log_ref, ids, old, trained, advantage, config, weights, sampler))
    return rows


def reference_loss(
    logits_fn: LogitsFn, groups: Sequence[PlainGroup], config: PlainConfig, ref_logits_fn: LogitsFn | None = None
) -> Tensor:
    """The scalar loss to minimise, differentiable."""
    return aggregated(reference_rows(logits_fn, groups, config, ref_logits_fn), config)


def aggregated(rows: Sequence[tuple[list[Tensor], list[Tensor]]], config: PlainConfig) -> Tensor:
    """One number from the losses and the KLs of every completion."""
    losses = aggregate([row for row, _ in rows], config.aggregation, config.max_length)
    kls = aggregate([row for _, row in rows], config.kl_aggregation or config.aggregation, config.max_length)
    return losses + config.kl_coef * kls


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
