"""Single updates, in TRL's words and in oncurve's: the same weights, completions, rewards and log-probs for both.

Three prompts with four completions each, of 1 to 24 tokens, some cut off; a reference near the policy; old log-probs
up to 0.4 away from the policy's, so that clips bind on both sides. `gradient` is the learner's, `oracle` that of
`tests/oracles/plain_grpo` in float64, which shares no code with it.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import models
from bench.cases import Case

__all__ = [
    "CASE",
    "KLS",
    "LOSSES",
    "REWARDS",
    "Loss",
    "Update",
    "completions",
    "distance",
    "gradient",
    "module",
    "old_logprobs",
    "oracle",
    "prompts",
    "truncated",
]

TESTS = Path(__file__).parents[2] / "tests"
CASE = Case("oncurve", "6.5M", prompts=3, group_size=4, completion=24, lengths="natural")
BETA = 0.05
EPSILON = 1e-4  # TRL's, beside the standard deviation of rewards
TOKENS_PER_MICRO_BATCH = 100
REWARDS = ((1.0, 0.0, 0.25, 0.5), (0.5, 0.75, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0))


@dataclass(frozen=True)
class Loss:
    """A loss: what `GRPOConfig` is given for it, and oncurve's objective with its settings, and aggregation."""

    trl: dict[str, Any]
    objective: str
    aggregation: str
    settings: dict[str, Any] = field(default_factory=dict)


LOSSES: dict[str, Loss] = {
    "grpo": Loss({"loss_type": "grpo"}, "clipped", "seq-mean-token-mean"),
    "bnpo": Loss({"loss_type": "bnpo"}, "clipped", "token-mean"),
    "dr_grpo": Loss({"loss_type": "dr_grpo", "scale_rewards": "none"}, "clipped", "seq-mean-token-sum-norm"),
    "dapo": Loss({"loss_type": "dapo", "epsilon_high": 0.28}, "clipped", "token-mean", {"clip_high": 0.28}),
    "cispo": Loss(
        {"loss_type": "cispo", "epsilon_high": 1.28}, "cispo", "token-mean", {"clip_low": 1.0, "clip_high": 0.28}
    ),
    "sapo": Loss({"loss_type": "sapo"}, "sapo", "seq-mean-token-mean"),
    "gspo": Loss(
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
        "gspo",
        "seq-mean-token-mean",
        {"clip_low": 0.02, "clip_high": 0.03},
    ),
}
"""By TRL's `loss_type`; "gspo" is its sequence level. TRL bounds CISPO's weight by `epsilon_high`, not by 1 + it."""

KLS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"beta": 0.0}, "k3"),
    "k3": ({"beta": BETA, "use_bias_correction_kl": False}, "k3"),
    "ratio k3": ({"beta": BETA, "use_bias_correction_kl": True}, "ratio_k3"),
}
"""The KL term: TRL's settings, and oncurve's estimator. "ratio k3" is the unbiased one, TRL's default."""


@dataclass(frozen=True)
class Update:
    """One update.

    loss, kl         keys of `LOSSES` and `KLS`
    off_policy       old log-probs other than the policy's
    micro_batches    into how many TRL splits the batch; oncurve splits by tokens where there are several
    mask_truncated   completions that were cut off are not trained
    """

    loss: str
    kl: str = "none"
    off_policy: bool = True
    micro_batches: int = 1
    mask_truncated: bool = False

    @property
    def coef(self) -> float:
        """β."""
        return float(KLS[self.kl][0]["beta"])


def prompts() -> list[list[int]]:
    """Return the tokens of the prompts: 10, 17 and 24 of them."""
    return [models.prompt_ids(CASE, g)[: 10 + 7 * g] for g in range(CASE.prompts)]


def completions() -> list[list[list[int]]]:
    """Return the tokens of every completion, by group: text of other prompts; those that were not cut off end with
    EOS.
    """
    eos = models.load_tokenizer().eos_token_id
    found = []
    for g, lengths in enumerate(CASE.lengths_of_step(0)):
        texts = [models.prompt_ids(CASE, 10 + g * CASE.group_size + i)[:n] for i, n in enumerate(lengths)]
        found.append([ids if cut else [*ids[:-1], eos] for ids, cut in zip(texts, truncated()[g], strict=True)])
    return found


def truncated() -> list[list[bool]]:
    """Return whether each completion was cut off, by group: two of the twelve."""
    return [[(g, i) in {(0, 1), (2, 3)} for i in range(CASE.group_size)] for g in range(CASE.prompts)]


def module(dtype: torch.dtype, disturbed: bool = False) -> Any:
    """Return the policy; `disturbed`: the reference, the same with a tenth of noise on its weights."""
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_pretrained(models.model_path(CASE.model), dtype=torch.float32)
    if disturbed:
        generator = torch.Generator().manual_seed(1)
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += 0.1 * parameter.data.std().nan_to_num() * noise
    return made.to(dtype)


@cache
def old_logprobs() -> list[list[list[float]]]:
    """Return the log-probs that both are given as the old policy's, by group: the policy's own, up to 0.4 away from
    them.
    """
    learner, _ = _learner(Update("grpo"))
    scored = learner.score(_batch(Update("grpo"), None), frozenset({"old"})).old_logprobs
    rows = iter(scored.double().tolist())
    return [
        [[value + 0.4 * math.sin(2.3 * t + i + g) for t, value in enumerate(next(rows)[: len(ids)])]
         for i, ids in enumerate(group)]
        for g, group in enumerate(completions())
    ]  # fmt: skip


def gradient(update: Update) -> dict[str, Tensor]:
    """Return the learner's gradient by parameter, in float32."""
    from oncurve.advantages import GroupAdvantage
    from oncurve.losses import AGGREGATION_KINDS

    learner, loss = _learner(update)
    batch = learner.score(_batch(update, old_logprobs()), frozenset({"reference"}))
    if update.off_policy:
        batch = batch.having(old_logprobs=batch.rollout_logprobs)
    scale = loss.trl.get("scale_rewards", "group")
    batch = batch.with_advantages(GroupAdvantage(eps=EPSILON, scale=scale)(batch))
    norm = {"max_length": CASE.completion} if loss.aggregation == "seq-mean-token-sum-norm" else {}
    learner.accumulate(batch.with_weights(AGGREGATION_KINDS[loss.aggregation](**norm)(batch)))
    return {name: part.float().clone() for name, part in learner.optimizer.gradients().items()}


def _learner(update: Update) -> tuple[Any, Loss]:
    from oncurve.learner import LearnerConfig
    from oncurve.losses import OBJECTIVE_KINDS, KLPenalty, Regularizer
    from oncurve.models import wrap

    loss = LOSSES[update.loss]
    config = LearnerConfig(tokens_per_micro_batch=TOKENS_PER_MICRO_BATCH if update.micro_batches > 1 else 10**6)
    learner = config.build(
        wrap(module(torch.float32)),
        OBJECTIVE_KINDS[loss.objective](**loss.settings),
        Regularizer(KLPenalty(estimator=KLS[update.kl][1], coef=update.coef), 0.0),
        reference=wrap(module(torch.float32, disturbed=True)) if update.coef else None,
    )
    return learner, loss


def _batch(update: Update, old: list[list[list[float]]] | None) -> Any:
    """Return the collated batch, with `old` as recorded log-probs; None: zeros."""
    from oncurve.batching import collate
    from oncurve.types import Completion, Group, Prompt, Score

    groups = []
    for g, (prompt, texts) in enumerate(zip(prompts(), completions(), strict=True)):
        rows = [
            Completion(
                tuple(ids),
                "",
                tuple(old[g][i]) if old else (0.0,) * len(ids),
                "length" if truncated()[g][i] else "eos",
                i,
                0,
            )
            for i, ids in enumerate(texts)
        ]
        groups.append(Group(Prompt(g, "", tuple(prompt)), tuple(rows), tuple(map(Score, REWARDS[g]))))
    return collate(groups, mask_truncated=update.mask_truncated)


def oracle(update: Update) -> dict[str, Tensor]:
    """Return the gradient by parameter of the plain oracle, in float64."""
    sys.path.insert(0, str(TESTS))
    from oracles.plain_grpo import PlainConfig, PlainGroup, reference_loss

    loss = LOSSES[update.loss]
    policy, reference = module(torch.float64), module(torch.float64, disturbed=True)
    old = old_logprobs()
    groups = [
        PlainGroup(
            prompt,
            texts,
            list(REWARDS[g]),
            old[g] if update.off_policy else None,
            [[not (cut and update.mask_truncated)] * len(ids) for ids, cut in zip(texts, truncated()[g], strict=True)],
        )
        for g, (prompt, texts) in enumerate(zip(prompts(), completions(), strict=True))
    ]
    config = PlainConfig(
        eps=EPSILON,
        scale=loss.trl.get("scale_rewards", "group"),
        objective=loss.objective,
        kl=KLS[update.kl][1],
        kl_coef=update.coef,
        aggregation=loss.aggregation,
        max_length=CASE.completion,
    )
    config = replace(config, **loss.settings)
    total = reference_loss(lambda ids: policy(ids).logits[0], groups, config, lambda ids: reference(ids).logits[0])
    names, parameters = zip(*policy.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


def distance(given: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return `|given - right| / |right|` over all parameters. Raises ValueError where they are not of the same
    parameters.
    """
    if given.keys() != right.keys():
        raise ValueError(f"gradients of different parameters: {sorted(given.keys() ^ right.keys())[:6]}")
    apart = sum(float((given[name].double() - right[name].double()).square().sum()) for name in right)
    return math.sqrt(apart / sum(float(part.double().square().sum()) for part in right.values()))
