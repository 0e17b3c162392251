"""`oncurve reward-model label`: a policy's own samples with labels, as training data for a reward model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oncurve.base.errors import ConfigError, DataError
from oncurve.base.paths import usable_path
from oncurve.cluster import Cluster
from oncurve.config import RunConfig, check_complete
from oncurve.display import Screen, say
from oncurve.durable import AppendLog
from oncurve.reward_models import example_to_json
from oncurve.rewards import component_names
from oncurve.rollout import sample
from oncurve.run.assembly import Run, assemble
from oncurve.run.iterations import Kind, LabellingInputs, labeller
from oncurve.run.loop import order_of
from oncurve.types import Group


def label_samples(
    config: RunConfig, base: Path, out: Path, kind: Kind, prompts: int, verifier: str | None, continuations: int
) -> int:
    """Sample a group for each of the recipe's first `prompts` prompts, score it, and write examples to `out`.

    kind        "preferences": pairs; "steps": completions with labelled steps
    verifier    the name of the reward that labels; None: the only one
    continuations  completions from each step's end, whose share of right ones is its label; 0: the verifier scores
                steps

    Returns how many examples there are. Raises UserError: settings are lacking, `out` exists, no such reward.
    """
    if usable_path(out, "--out").exists():
        raise DataError(f"{out} exists and is not overwritten; choose another --out")
    check_complete(config)
    console = Screen()
    names = component_names(config.rewards)
    if verifier is None and len(names) > 1:
        raise ConfigError(f"--verifier: which of the rewards is the verifier? They are: {', '.join(names)}")
    chosen = verifier or names[0]
    if chosen not in names:
        raise ConfigError(f"--verifier: there is no reward {chosen!r}; they are: {', '.join(names)}")
    with assemble(config.model_copy(update={"cluster": Cluster()}), base) as run:  # nothing is trained
        run.engine.follow(run.learner.weights())
        label = labeller(
            config, kind, chosen, continuations, LabellingInputs(run.engine, run.rewards, run.learner, run.loaded)
        )
        count = 0
        with AppendLog(out) as log:
            for groups in _groups(run, config, prompts):
                for example in label(groups):
                    log.append(example_to_json(example))
                    count += 1
                log.sync()  # where the disk is full, nothing is gained by going on
        say(console, f"{count} {'pairs' if kind == 'preferences' else 'completions with labelled steps'} in {out}")
        if not count:
            why = "no two completions of a group have different scores"
            if kind == "steps":
                why = f"{chosen} scored no steps; label them by continuations (--continuations 8)"
            say(console, f"nothing to learn from: {why}")
    return count


def _groups(run: Run, config: RunConfig, prompts: int) -> Iterator[list[Group]]:
    order, cursor, draw = order_of(config, run.prompts), 0, 0
    while cursor < prompts:
        taken, cursor = order.take(cursor, min(config.data.prompts_per_step, prompts - cursor))
        groups = sample(run.engine, taken, draw, config.rollout.group_size)
        yield run.rewards.score(groups)
        draw += 1
