"""The smallest API: any `nn.Module` with `forward(input_ids) -> logits`, token tensors in, metrics out.

The arguments and metrics are those of rlox's `GRPO`; the algorithm is oncurve's `grpo` preset (clipped, k3, masked
beyond the end of a completion) unless `preset = "rlox"` asks for rlox's own (reinforce, k1). In either, the prompt's
tokens are never trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.errors import DataError, RewardError
from oncurve.losses import Regularizer
from oncurve.models import save, wrap
from oncurve.rewards.parts import LARGEST_REWARD
from oncurve.rewards.scoring import Afterwards
from oncurve.rollout import InProcessEngine, Policy, check_token_ids
from oncurve.run.assemble import trainer_config
from oncurve.run.config import RunConfig
from oncurve.run.loading import load_config
from oncurve.trainer import KLControl, Outer, ReferenceSchedule, StepResult, Trainer, TrainerState
from oncurve.types import Group, Prompt, Score

__all__ = ["GRPO", "TokenReward"]

TokenReward = Callable[[list[Tensor], Tensor], Sequence[float]]
"""`(completions, prompts) -> rewards`: n tensors `(|o|,)`, prompts `(n, P)` one a completion, n finite floats.

A completion is what the policy wrote, without the prompt. Prompts of different lengths are padded on the right with 0.
"""


class GRPO:
    """GRPO on token ids, without tokenizer, files or configuration.

        trainer = GRPO(model=model, ref_model=ref_model, reward_fn=reward_fn, group_size=4, kl_coef=0.1,
                       learning_rate=1e-4, max_new_tokens=8)
        metrics = trainer.train(prompts=prompt_tensor, n_epochs=3)
        print(metrics["mean_reward"], metrics["kl"])

    Args:
        model: the policy; a transformers model takes the fast path, anything else the plain one.
        ref_model: what the KL term holds the policy near; None: a frozen copy of `model` as it is now.
        reward_fn: see `TokenReward`. It runs in this process and cannot be stopped.
        group_size: completions of each prompt.
        kl_coef: 0 trains without a reference.
        eos_ids: token ids that end a completion; without any, every completion has `max_new_tokens` tokens.
        preset: "grpo", "dr_grpo", "rlox", ...: what the algorithm is where the arguments do not say.
        settings: more settings as nested tables, such as `{"objective": {"clip_high": 0.28}}`.

    Raises ConfigError for settings that cannot be.
    """

    def __init__(
        self,
        model: nn.Module,
        ref_model: nn.Module | None = None,
        reward_fn: TokenReward | None = None,
        group_size: int = 4,
        learning_rate: float = 1e-4,
        kl_coef: float = 0.1,
        max_new_tokens: int = 8,
        *,
        temperature: float = 1.0,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        preset: str = "grpo",
        settings: dict[str, Any] | None = None,
    ) -> None:
        if reward_fn is None:
            raise RewardError("GRPO needs reward_fn: a function (completions, prompts) -> list of floats")
        tables: dict[str, dict[str, Any]] = {
            "rollout": {"group_size": group_size, "max_new_tokens": max_new_tokens, "temperature": temperature},
            "kl": {"coef": kl_coef},
            "learner": {"learning_rate": learning_rate},
            "run": {"seed": seed},
        }
        for section, table in (settings or {}).items():
            tables[section] = {**tables.get(section, {}), **table}
        self.config: RunConfig = load_config(preset, settings=tables)[0]
        self.reward_fn = reward_fn
        self.model = model
        policy = wrap(model)
        reference = wrap(ref_model) if ref_model is not None and kl_coef else None
        self.config.reference.check(policy, reference)
        actor = self.config.learner.build(
            policy,
            self.config.objective,
            Regularizer(self.config.kl, self.config.entropy.coef),
            temperature=temperature,
            reference=reference,
        )
        self.learner = self.config.critic.build(actor)
        check_token_ids("eos_ids", (*eos_ids, *self.config.rollout.eos_ids), policy)
        self.engine = InProcessEngine(self.config.rollout, None, tuple(eos_ids), seed)
        self.outer: Outer = ReferenceSchedule(self.config.reference.every, self.config.reference.mixup, self.learner)
        self.state = TrainerState()

    def train(self, prompts: Tensor | Sequence[Tensor], n_epochs: int = 1) -> dict[str, float]:
        """`n_epochs` times one step over all prompts `(N, P)` (or N tensors of their own lengths).

        Returns the last step's metrics: `loss`, `mean_reward`, `kl`, and every declared metric under its own name.
        """
        metrics: dict[str, float] = {}
        for _ in range(n_epochs):
            metrics = self.train_step(prompts)
        return metrics

    def train_step(self, prompts: Tensor | Sequence[Tensor]) -> dict[str, float]:
        """One step over all prompts: a group each, rewards, one update (as many as the settings say)."""
        trainer = self._trainer(_as_prompts(prompts))
        self.outer.begin(self.state)
        result: StepResult = self.outer.end(trainer.step())
        self.state = trainer.state
        return {"kl": 0.0, **result.metrics, "mean_reward": result.metrics["reward"]}

    def evaluate(self, prompts: Tensor | Sequence[Tensor]) -> float:
        """The mean reward of one sampled completion a prompt."""
        self.engine.follow(Policy(self.learner.policy(), self.learner.version))
        one = self.config.rollout.model_copy(update={"group_size": 1})
        groups = TokenScorer(self.reward_fn).score(self.engine.generate(_as_prompts(prompts), -1, one))
        return math.fsum(group.scores[0].reward for group in groups) / len(groups)

    def save(self, path: str | Path) -> None:
        """The policy's weights in full precision: `model.safetensors`, in Hugging Face form where the model has one."""
        save(self.model, None, Path(path), self.learner.masters())

    def _trainer(self, prompts: list[Prompt]) -> Trainer:
        settings = trainer_config(self.config)
        return Trainer(
            replace(settings, prompts_per_step=len(prompts)),
            self.engine,
            self.learner,
            TokenScorer(self.reward_fn),
            AllPrompts(prompts),
            self.config.advantage,
            self.config.loss_weights,
            KLControl(self.config.kl),
            self.outer,
            self.state,
        )


@dataclass(frozen=True)
class AllPrompts:
    """A stream that gives all prompts at every step."""

    prompts: list[Prompt]

    def take(self, cursor: int, count: int) -> tuple[list[Prompt], int]:
        """All of them, and the cursor after them."""
        return self.prompts, cursor + count

    def epoch(self, cursor: int) -> float:
        """Every step is an epoch."""
        return cursor / len(self.prompts)


@dataclass(frozen=True)
class TokenScorer:
    """Scores groups with a reward on token tensors, in this process."""

    reward_fn: TokenReward

    def begin(self, step: int = 0) -> Afterwards:
        """Scoring begins when all groups are written: the reward would keep the sampler waiting."""
        return Afterwards(self.score)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with their rewards. Raises RewardError: another number of rewards, or one that is not finite."""
        completions = [torch.tensor(c.ids) for group in groups for c in group.completions]
        prompts = [torch.tensor(group.prompt.ids) for group in groups for _ in group.completions]
        padded = nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        rewards = [float(reward) for reward in self.reward_fn(completions, padded)]
        if len(rewards) != len(completions):
            raise RewardError(f"reward_fn returned {len(rewards)} rewards for {len(completions)} completions")
        if bad := [reward for reward in rewards if not abs(reward) <= LARGEST_REWARD]:
            raise RewardError(f"reward_fn returned {bad[0]}; a reward is a finite number, up to ±{LARGEST_REWARD:g}")
        each = iter(rewards)
        return [Group(g.prompt, g.completions, tuple(Score(next(each)) for _ in g.completions), g.draw) for g in groups]


def _as_prompts(prompts: Tensor | Sequence[Tensor]) -> list[Prompt]:
    rows = [torch.as_tensor(row) for row in prompts]
    if not rows:
        raise DataError("there are no prompts: GRPO.train takes token ids (N, P), or N tensors of token ids")
    for index, row in enumerate(rows):
        if row.ndim != 1 or not len(row) or row.is_floating_point():
            raise DataError(f"prompt {index} is {tuple(row.shape)} {row.dtype}; a prompt is a row of token ids (P,)")
    return [Prompt(index, "", tuple(row.tolist())) for index, row in enumerate(rows)]
