"""`oncurve reward-model label`: a policy's own samples, judged, as what a reward model learns from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from oncurve.data import example_to_json
from oncurve.display import Screen, say
from oncurve.durable import AppendLog
from oncurve.errors import ConfigError, DataError
from oncurve.paths import usable_path
from oncurve.rollout import Policy
from oncurve.run.assemble import Run, assemble
from oncurve.run.checks import check_complete
from oncurve.run.config import RunConfig
from oncurve.run.iterations import Kind, Sources, labeller
from oncurve.run.loading import load_config
from oncurve.types import Group

__all__ = ["label_samples"]


def label_samples(
    recipe: str | Path,
    overrides: Sequence[str],
    out: Path,
    kind: Kind,
    prompts: int,
    judge: str | None = None,
    roll_outs: int = 0,
) -> int:
    """Sample a group for each of the recipe's first `prompts` prompts, judge it, and write examples to `out`.

    kind        "preferences": pairs; "steps": completions with labelled steps
    judge       the name of the reward whose word counts; None: the only one
    roll_outs   completions from each step's end, whose share of right ones is its label; 0: the judge judges steps

    Returns how many examples there are. Raises UserError: what is wrong with the recipe, `out` exists, no such reward.
    """
    if usable_path(out, "--out").exists():
        raise DataError(f"{out} exists and is not overwritten; choose another --out")
    config, base = load_config(recipe, overrides)
    check_complete(config)
    console = Screen()
    with assemble(config, base) as run:
        names = [part.name for part in run.rewards.parts]
        if judge is None and len(names) > 1:
            raise ConfigError(f"--judge: which of the rewards judges? They are: {', '.join(names)}")
        chosen = judge or names[0]
        if chosen not in names:
            raise ConfigError(f"--judge: there is no reward {chosen!r}; they are: {', '.join(names)}")
        run.engine.follow(Policy(run.learner.policy(), run.learner.version))
        label = labeller(config, kind, chosen, roll_outs, Sources(run.engine, run.rewards, run.learner, run.loaded))
        count = 0
        with AppendLog(out) as log:
            for groups in _groups(run, config, prompts):
                for example in label(groups):
                    log.append(example_to_json(example))
                    count += 1
        say(console, f"{count} {'pairs' if kind == 'preferences' else 'completions with labelled steps'} in {out}")
        if not count:
            why = "no two completions of a group were judged differently"
            if kind == "steps":
                why = f"{chosen} judged no steps; have them found by roll-outs (--roll-outs 8)"
            say(console, f"nothing to learn from: {why}")
    return count


def _groups(run: Run, config: RunConfig, prompts: int) -> Iterator[list[Group]]:
    cursor, draw = 0, 0
    while cursor < prompts:
        taken, cursor = run.trainer.stream.take(cursor, min(config.data.prompts_per_step, prompts - cursor))
        groups = run.engine.generate(taken, draw)
        yield run.rewards.score(groups)
        draw += 1
