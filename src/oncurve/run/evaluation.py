"""`oncurve eval`: what a run's policy, or any model, can do on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oncurve.data import load_eval_rows, load_rows, open_prompts
from oncurve.errors import ConfigError, RunDirectoryError, command
from oncurve.evaluate import Evaluation, Interval
from oncurve.learner.reward_model import NoRewardModel
from oncurve.models import CausalModel, LoadedModel
from oncurve.models.rotation import reach_of
from oncurve.paths import usable_path
from oncurve.rewards import RewardSet
from oncurve.rollout import InProcessEngine, Policy
from oncurve.run.assemble import assemble, fix_reach, judge, room_for_prompts
from oncurve.run.checks import check_complete
from oncurve.run.columns import check_columns
from oncurve.run.config import RunConfig
from oncurve.run.loading import load_config
from oncurve.run.plan import NO_VERIFIER
from oncurve.run.process import prepare_process
from oncurve.trainer import Checkpoints

__all__ = ["Judged", "evaluate_target"]


@dataclass(frozen=True)
class Judged:
    """An evaluation, and of what: `name` the model."""

    name: str
    evaluation: Evaluation

    def text(self) -> str:
        """The evaluation as lines to read."""
        found = self.evaluation
        kind = "held-out prompts" if found.held_out else "prompts of the training data (the recipe holds none out)"
        lines = [f"{self.name}: {found.prompts} {kind}, {found.completions} samples each"]
        if found.verifier is None:
            lines.append(f"  {NO_VERIFIER}")
        rows: list[tuple[str, Interval | None]] = [("greedy accuracy", found.greedy_accuracy)]
        rows += [("mean reward", found.mean_reward or found.greedy_reward)]
        rows += [(f"pass@{k}", interval) for k, interval in found.pass_at_k.items()]
        rows += [(f"maj@{k}", interval) for k, interval in found.maj_at_k.items()]
        lines += [
            f"  {label:<16} {interval.value:8.4f}   95 % interval {interval.low:.4f} to {interval.high:.4f}"
            for label, interval in rows
            if interval is not None
        ]
        lines.append(f"  {'mean length':<16} {found.mean_length:8.1f}   tokens; {found.truncated_fraction:.1%} cut off")
        if found.invalid:
            lines.append(f"  {found.invalid} completions had no usable reward and count as wrong")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"model": self.name, **self.evaluation.to_json()}


def evaluate_target(
    target: str, overrides: Sequence[str] = (), *, recipe: str | None = None, n: int = 8, limit: int | None = None
) -> Judged:
    """Evaluate a run's directory, or a model (directory or hub id) on the prompts and rewards of `recipe`.

    Of a run, `model/` is evaluated where it is finished, else its newest checkpoint that verifies.
    Raises UserError for everything the user can mend.
    """
    folder = Path(target)
    usable_path(target, "DIR|MODEL")
    is_run = (folder / "checkpoints").is_dir() or (folder / "metrics.jsonl").is_file()
    words = [*overrides, *([f"eval.limit={limit}"] if limit is not None else [])]
    if (target[:1] in ("/", ".", "~") or target.count("/") > 1) and not folder.expanduser().exists():
        raise RunDirectoryError(f"there is no folder {target}: name the --out of a run, or a model")
    if not is_run and recipe is None and not overrides:
        raise ConfigError(
            f"{target} is not a run, so its prompts and rewards must be named, by a recipe: "
            f"{command('eval', target, '--recipe', 'RECIPE.toml')}, or by settings: "
            + command("eval", target, "data.path=FILE.jsonl", "rewards=[{kind='math'}]")
        )
    source = recipe or (folder / "config.toml" if is_run else "grpo")
    if is_run and not (folder / "model").is_dir():
        return _unfinished(folder, source, words, n)
    config, base = load_config(source, [*words, f"model.path={folder / 'model' if is_run else target}"])
    check_complete(config)
    prompts_of, held_out = _rows(config, base)
    prepare_process(config.run.threads)
    with RewardSet.build(config.rewards, base=base) as rewards:
        check_columns(rewards, config.data, prompts_of)
        _judge_with(rewards, config, folder / "reward_model")
        loaded = config.model.build()
        fits = room_for_prompts(loaded, config)
        prompts = open_prompts(prompts_of, config.data, loaded.tokenizer, fits, loaded.vocabulary)
        known = [prompts]
        if (
            is_run and held_out and reach_of(loaded.model.module) is not None
        ):  # rotate as in the run, by all of its rows
            trained_on = load_rows(config.data, base)
            known.append(open_prompts(trained_on, config.data, loaded.tokenizer, fits, loaded.vocabulary))
        fix_reach(loaded.model, config, *known)
        prompts = prompts.first(config.eval.limit)
        engine = _engine(loaded.model, loaded, config)
        return Judged(target, replace(judge(engine, rewards, prompts, config, n), held_out=held_out))


def _judge_with(rewards: RewardSet, config: RunConfig, trained: Path) -> None:
    """The run's own reward model: as its iterations left it, where they did."""
    settings = config.reward_model
    if not isinstance(settings, NoRewardModel):
        path = str(trained) if trained.is_dir() else settings.path
        rewards.judge_with(settings.model_copy(update={"path": path}).load(masters=False))


def _unfinished(folder: Path, source: str | Path, words: list[str], n: int) -> Judged:
    """The newest checkpoint of a run that has not ended."""
    config, base = load_config(source, words)
    with assemble(config, base) as run:
        found = Checkpoints(folder / "checkpoints", config.checkpoint.keep).restore(run.learner, run.trainer.outer)
        if found is None:
            raise RunDirectoryError(f"{folder} has neither a model nor a checkpoint yet; {command('resume', folder)}")
        return Judged(f"{folder}, step {found[0].step}", run.evaluate(n))


def _rows(config: RunConfig, base: Path) -> tuple[Any, bool]:
    held_out = load_eval_rows(config.data, base)
    return (held_out, True) if len(held_out) else (load_rows(config.data, base), False)


def _engine(model: CausalModel, loaded: LoadedModel, config: RunConfig) -> InProcessEngine:
    engine = InProcessEngine(config.rollout, loaded.tokenizer, loaded.eos_ids, config.run.seed)
    engine.follow(Policy(model, 0))
    return engine
