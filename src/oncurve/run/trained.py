"""The result of `oncurve.train`: the metrics, the model, and ways to look at them, in a notebook or a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, RunDirectoryError, command
from oncurve.data import Prompts, Rows, check_row
from oncurve.display import run_card
from oncurve.evaluate import EVALUATION_DRAW, Evaluation
from oncurve.report import Page, ShownGroups, charts_page, group_record, link, read_run, report_page, steps_in_words
from oncurve.rollout import sample
from oncurve.run.assembly import Run
from oncurve.trainer import StepResult

if TYPE_CHECKING:
    import pandas


class MetricsLog(list[dict[str, float]]):
    """A mapping per step, in order: metrics by declared key, `step` among them. A cell shows a table of them."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per step, indexed by `step`; a column per metric, NaN where a step has none. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        columns = dict.fromkeys(("step", *(key for line in self for key in line)))
        return pandas.DataFrame(list(self), columns=list(columns)).astype({"step": int}).set_index("step")

    def _repr_html_(self) -> str:
        return run_card(f"{len(self)} steps", self, ["metrics.to_pandas() is a table of all of them"])


@dataclass
class TrainedRun(Closing):
    """The result of `train`: every step's metrics, the trained model, and the run.

    The run has released its directory, so `resume` may continue it, and has ended the processes of `[cluster]`: this
    process evaluates and samples. The end of a `with` block ends the reward workers. In a notebook a run is shown as a
    small table with curves.

    metrics     one mapping per step, by declared key; `metrics.to_pandas()` is a DataFrame
    directory   the run directory; None where `out` was not given
    stopped_by  the name of the signal that ended the run early, or None
    """

    run: Run
    metrics: MetricsLog = field(default_factory=MetricsLog)
    stopped_by: str | None = None
    _last: StepResult | None = field(default=None, repr=False)
    _samplings: int = field(default=0, repr=False)
    _closed: bool = field(default=False, repr=False)

    def __repr__(self) -> str:
        """Return one line: a notebook prints it where a cell ends with `oncurve.train(...)`; rows and model are left
        out.
        """
        where = None if self.directory is None else str(self.directory)
        return f"TrainedRun(steps={len(self.metrics)}, directory={where!r}, stopped_by={self.stopped_by!r})"

    def _repr_html_(self) -> str:
        done, planned = len(self.metrics), self.run.config.run.steps
        steps = f"{done} steps" if done == planned else f"{done} of {planned} steps"
        where = "in memory (no out=)" if self.directory is None else str(self.directory)
        stopped = [] if self.stopped_by is None else [f"stopped by {self.stopped_by}"]
        more = ["run.plot()  run.groups()  run.sample()  run.evaluate()  run.report()  run.metrics.to_pandas()"]
        if self.directory is not None:
            at = link(self.directory.resolve().name, done)
            more.append(f"In a browser: {command('view', self.directory, '--at', at)}")
            more.append("Links: #/run/step/group/completion/token, #/run/evaluation, #/run/doctor, #/run/curves/metric")
        return run_card(" · ".join([where, steps, *stopped]), self._whole(), more)

    @property
    def model(self) -> nn.Module:
        """The policy's module, trained in place."""
        return self.run.loaded.model.module

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self.run.loaded.tokenizer

    @property
    def directory(self) -> Path | None:
        """The run directory."""
        return self.run.directory.path if self.run.directory is not None else None

    def _whole(self) -> list[dict[str, float]]:
        """Return the metrics of all steps, after those of the evaluation before step 1."""
        return [*([self.run.before] if self.run.before else []), *self.metrics]

    def keep(self, result: StepResult) -> None:
        """Add a step that has ended: an observer of the trainer."""
        self.metrics.append(result.metrics)
        self._last = result

    def go_back(self, make: Callable[[], Run]) -> None:
        """Continue with the run that `make` restores from an earlier step. The present one is closed before, and its
        memory is free."""
        before = self.run.before
        self.close()
        del self.run
        self.run, self._closed = make(), False
        self.run.before.update(before)
        self.metrics[:] = [line for line in self.metrics if line["step"] <= self.run.trainer.state.step]

    def evaluate(self, n: int = 0) -> Evaluation:
        """Return the policy on the held-out prompts: greedy, and n samples a prompt where n > 0.

        Where no rows are held out, on the training prompts, as `oncurve eval` does; the result's `held_out` says it.
        """
        self._check(n, 0)
        return self.run.evaluate(n)

    def _check(self, n: Any, least: int, temperature: Any = None) -> None:
        """Raises ConfigError: the run is closed, or an argument has no meaning."""
        if self._closed:
            raise ConfigError("the run is closed: call this before run.close(), or on oncurve.resume(DIR)")
        if type(n) is not int or n < least:
            raise ConfigError(f"n: expected a whole number of at least {least}, got {n!r:.60}")
        if temperature is not None and not (isinstance(temperature, int | float) and 0 <= temperature < math.inf):
            raise ConfigError(f"temperature: expected a number of at least 0, got {temperature!r:.60}")

    def plot(self, *metrics: str) -> Page:
        """Curves of these metrics, for example `run.plot("reward/mean", "policy/kl")`; without names of the main ones.

        A notebook's cell shows them; `.save("curves.html")` writes them. Raises ConfigError: no step has such a metric.
        """
        return charts_page([*map(str, metrics)], self._whole())

    def report(self) -> Page:
        """Return the report of the run, as `report.html` of its directory, written again if it is there.

        Without a directory it has the curves, and the groups of the last step.
        """
        return report_page(self.directory, self._whole(), ShownGroups([]) if self.directory else self.groups())

    def groups(self, step: int | None = None) -> ShownGroups:
        """Return the groups of a step (None: the last one) with texts, rewards and advantages, as plain values.

        They are read from the directory; without one the last step's alone are known. A cell shows them.
        Raises ConfigError: the groups of that step are not kept.
        """
        last, record = self._last, None if self.directory is None else read_run(self.directory)
        kept = () if record is None else record.steps
        chosen = step if step is not None else kept[-1] if kept else None
        if record is not None and chosen in kept:
            return ShownGroups(record.groups(chosen), chosen)
        if last is not None and step in (None, last.step):
            pairs = zip(last.groups, last.advantages, strict=True)
            records = ({"step": last.step, **group_record(group, advantages)} for group, advantages in pairs)
            return ShownGroups(records, last.step)
        asked = "a step" if step is None else f"step {step}"
        if self.directory is None:
            known = "none" if last is None else f"those of step {last.step}"
            raise ConfigError(f"the groups of {asked} are not kept, as the run has no out=; known: {known}")
        known = f"rollouts.keep = {self.run.config.rollouts.keep!r}, and there are those of: {steps_in_words(kept)}"
        raise ConfigError(f"{self.directory} has no groups of {asked}; {known}")

    def sample(self, n: int = 4, prompt: Any = None, *, temperature: float | None = None) -> ShownGroups:
        """Return completions by the policy as it is now, other ones at each call.

        n            with a prompt, that many completions of it; else one completion of each of the first n held-out
                     prompts (training prompts, where none is held out), with its reward
        prompt       a string, chat messages, token ids, or a mapping with the columns of `data.template`
        temperature  None: that of training; 0: greedy

        Raises ConfigError: n or temperature has no meaning, or the run is closed. DataError: it is no prompt.
        """
        self._check(n, 1, temperature)
        run, settings = self.run, self.run.config.rollout
        source = run.eval_prompts if len(run.eval_prompts) else run.prompts
        prompts = _one_prompt(run.prompts, prompt) if prompt is not None else source.first(n)
        update = {"group_size": n if prompt is not None else 1}
        sampling = settings.model_copy(update=update | ({} if temperature is None else {"temperature": temperature}))
        run.engine.follow(run.learner.weights())
        self._samplings += 1
        asked = [prompts[index] for index in range(len(prompts))]
        groups = sample(run.engine, asked, EVALUATION_DRAW - self._samplings, sampling.group_size, sampling)
        return ShownGroups(
            group_record(group) for group in (groups if prompt is not None else run.rewards.score(groups))
        )

    def save(self, path: str | Path) -> None:
        """Write the policy in Hugging Face form, from the full-precision masters, into a new or empty folder.

        Raises RunDirectoryError: something is there, which is not overwritten.
        """
        if (folder := Path(path)).exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunDirectoryError(f"{path} exists and is not empty; nothing is overwritten: name another folder")
        self.run.save_model(folder)

    def close(self) -> None:
        """End the reward workers. `evaluate` and `sample` cannot be called after it. Twice is allowed."""
        self._closed = True
        if "run" in vars(self):  # not where it has gone back in vain
            self.run.close()


def _one_prompt(like: Prompts, prompt: Any) -> Prompts:
    """Return a prompt made as those of the run are. Raises DataError: it is none."""
    rows = isinstance(prompt, Mapping)
    settings = like.settings if rows else like.settings.model_copy(update={"template": None})
    row = dict(prompt) if rows else {settings.prompt_column: prompt}
    check_row(row, settings, "prompt")
    return replace(like, rows=Rows([row], [0], lambda number: "prompt"), settings=settings)
