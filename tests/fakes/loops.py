"""A whole training loop over a tiny policy, its reward a function of token ids: quick, and real in every part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.learning import make_learner
from fakes.tiny_policy import VOCABULARY
from oncurve.advantages import GroupAdvantage
from oncurve.compat.token_grpo import TokenScorer
from oncurve.data import PromptOrder
from oncurve.learner import ReferenceSettings
from oncurve.losses import KLPenalty, TokenMean
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.trainer import (
    Checkpoints,
    Credit,
    DynamicSampling,
    EntropyControl,
    Groups,
    KLControl,
    LaggedGroups,
    OldPolicy,
    Recorder,
    ReferenceSchedule,
    Trainer,
    TrainerConfig,
    TrainerState,
)
from oncurve.types import Prompt

PROMPTS = [Prompt(index, "", (index % VOCABULARY, index // VOCABULARY)) for index in range(17)]


def rarely(completions: Any, prompts: Any) -> list[float]:
    """1 where a completion has one token twice in a row."""
    return [float(bool((completion[1:] == completion[:-1]).any())) for completion in completions]


def make_loop(
    folder: Path | None = None,
    dynamic: DynamicSampling | None = None,
    top_p: float = 1.0,
    reward: Callable[[Any, Any], list[float]] = rarely,
    prompts: int = 3,
    steps: int = 6,
    config: dict[str, Any] | None = None,
    entropy: EntropyControl | None = None,
    lag: dict[str, Any] | None = None,
    **settings: Any,
) -> Trainer:
    """A loop from the first step on; with `folder` it writes there, a checkpoint after every step.

    `config` goes to the `TrainerConfig`, `lag` to `LaggedGroups`, `settings` to the learner.
    """
    learner = make_learner(**{"kl_coef": 0.0, "temperature": 1.0, "learning_rate": 0.05, **settings})
    state, chosen = TrainerState(), config or {}
    single = chosen.get("ppo_epochs", 1) * chosen.get("minibatches", 1) == 1
    engine = InProcessEngine(Sampling(group_size=4, max_new_tokens=4, top_p=top_p), seed=5)
    least = GroupAdvantage().min_valid_completions
    given = (engine, TokenScorer(reward), PromptOrder(PROMPTS, 5), prompts, 4, least, dynamic)
    groups = Groups(*given) if lag is None else LaggedGroups(*given, **lag, steps=steps)
    loop = Trainer(
        TrainerConfig(steps, seed=5, checkpoint_every=1, old_policy=OldPolicy(single), **chosen),
        groups,
        learner,
        Credit(GroupAdvantage(), TokenMean(), KLControl(KLPenalty(coef=0.0)), entropy or EntropyControl()),
        ReferenceSchedule(ReferenceSettings(), learner),
        state,
    )
    if folder is not None:
        loop.recorder = Recorder(folder, state, refusals=loop.refusals)
        loop.checkpoints = Checkpoints(folder / "checkpoints", keep=0)
    return loop


def resumed(loop: Trainer, folder: Path) -> Trainer:
    """A fresh loop, taken to the state of the newest checkpoint in `folder`."""
    loop.checkpoints = Checkpoints(folder / "checkpoints", keep=0)
    found = loop.checkpoints.restore(loop.learner, loop.outer)
    assert found is not None
    loop.state = found[0]
    loop.recorder = Recorder(folder, loop.state, refusals=loop.refusals)
    return loop
