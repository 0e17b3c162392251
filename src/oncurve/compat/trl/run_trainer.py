"""The interface of transformers' `Trainer` over a run of oncurve, once the trainer's arguments are translated.

`output_dir` becomes a run directory of oncurve, which `oncurve resume`, `report` and `doctor` read. Where it exists and
is not empty, the run is in `output_dir-2` (and so on): nothing is overwritten. `train(resume_from_checkpoint=True)`
continues the newest run of these.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers.trainer_utils import TrainOutput

from oncurve import durable
from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, RunDirectoryError, shown
from oncurve.compat.dialect import Line, Translation
from oncurve.compat.recipe import recipe_of
from oncurve.compat.trl.config import KEYS, GRPOConfig
from oncurve.compat.trl.hooks import Hooks, Logs, eval_loss, group_logs
from oncurve.compat.trl.trainer_arguments import all_rows
from oncurve.display import Screen, say
from oncurve.run import Run, RunDirectory, check_tracking, continue_with, create_directory, finish, prompts_from


class RunTrainer(Closing):
    """A run with the interface of transformers' `Trainer`; `recipe` is the same run in oncurve's words.

    The end of a `with` block ends workers.
    """

    def __init__(
        self, args: GRPOConfig, translation: Translation, run: Run, eval_dataset: Any, callbacks: Sequence[Any] | None
    ) -> None:
        """Take the run that the arguments have been translated to. Raises ConfigError: a callback is none."""
        self.args, self.translation, self.run, self.eval_dataset = args, translation, run, eval_dataset
        adapter = run.loaded.model.adapter
        self.model: Any = run.loaded.model.module if adapter is None else adapter.as_peft()
        """The policy, trained in place: a `PeftModel` over an adapter."""
        self._written: set[Path] = set()
        self._hooks = Hooks(args, run, self.model, self.evaluate)
        if run.config.eval.every > 0:
            run.trainer.evaluator = self._evaluator
        self.accelerator = SimpleNamespace(print=print, is_main_process=True, num_processes=1, process_index=0)
        for callback in callbacks or ():
            self._hooks.add(callback)
        self._hooks.call("on_init_end")

    @property
    def recipe(self) -> str:
        """The run as a recipe, with a comment per key; what is in memory alone is named at its end."""
        lines, memory = list[Line](), list[str]()
        for line in self.translation.lines:
            plain = {name: value for name, value in line.settings.items() if _is_plain(value)}
            lines += [replace(line, settings=plain)] if plain or line.settings == plain else []
            memory += [f"#   {line.key.theirs}: {line.value}"] if plain != line.settings else []
        rest = ["", "# In memory, and so not in this file:", *memory, ""] if memory else [""]
        return recipe_of(replace(self.translation, lines=tuple(lines))) + "\n".join(rest)

    @property
    def ref_model(self) -> Any:
        """The module of the reference; None where there is none, or where it is the base under an adapter."""
        reference = getattr(self.run.learner, "reference", None)
        found = None if reference is None else reference.model.module
        return None if found is self.run.loaded.model.module else found

    @property
    def entropy_coef(self) -> float:
        """The coefficient of the entropy bonus, as it is now."""
        steered = self.run.trainer.state.entropy_coef
        return self.run.config.entropy.coef if steered is None else steered

    @property
    def reward_func_names(self) -> list[str]:
        """The names of the rewards, that of an environment last."""
        return [reward.name for reward in self.run.rewards.components]

    aux_loss_enabled = False
    """No load-balancing loss is added."""

    @property
    def processing_class(self) -> Any:
        """The tokenizer."""
        return self.run.loaded.tokenizer

    tokenizer = processing_class

    @property
    def state(self) -> Any:
        """transformers' `TrainerState`: `global_step`, `epoch`, `log_history` and the rest."""
        return self._hooks.state

    @property
    def control(self) -> Any:
        """transformers' `TrainerControl`."""
        return self._hooks.control

    @property
    def directory(self) -> Path | None:
        """The run directory; None before `train`."""
        return None if self.run.directory is None else self.run.directory.path

    def add_callback(self, callback: Any) -> None:
        """Add a callback, or a class of them."""
        self._hooks.add(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback, or all of a class."""
        kept = [each for each in self._hooks.callbacks if each is not callback and type(each) is not callback]
        self._hooks.callbacks[:] = kept

    def train(self, resume_from_checkpoint: str | Path | bool | None = None) -> TrainOutput:
        """Train to the end, and write the model to `model/` of the run directory.

        `resume_from_checkpoint`: True continues the newest run in `output_dir`; a path, the run in that folder.

        Raises ConfigError: this trainer has trained already, or there is no run. What stops a run is as in oncurve:
        after a signal the step is finished, and a checkpoint written.
        """
        if self.run.directory is not None:
            raise ConfigError(f"this trainer has a run in {self.directory}; make another one, or resume that run")
        console = Screen()
        more = True
        if resume_from_checkpoint:
            more = continue_with(self.run, self._earlier(resume_from_checkpoint), console)
            self._hooks.count(self.run.trainer.state.step)
        else:
            self._begin(console)
        summary: dict[str, float] = {}
        if more:
            self._hooks.begin()
            finish(self.run, console, self._hooks.step)
            summary = self._hooks.end()
        self.run.rest()
        return TrainOutput(self.state.global_step, summary.get("train_loss", 0.0), summary)

    def _begin(self, console: Any) -> None:
        """Make the run directory: `output_dir`, or the first free one after it."""
        wanted = Path(self.args.output_dir)
        path = free_folder(wanted)
        if path != wanted:
            say(console, f"{wanted} is not empty; the run is in {path}")
        check_tracking(self.run.config)
        create_directory(self.run, path)
        say(console, f"{self.translation.counted()}; {type(self).__name__}.recipe shows them")

    def _earlier(self, wanted: str | Path | bool) -> Path:
        """Return the run to continue. Raises ConfigError: there is none."""
        if not isinstance(wanted, bool):
            return Path(wanted)
        there = takewhile(Path.exists, _numbered(Path(self.args.output_dir)))
        found = [path for path in there if (path / "config.toml").is_file()]
        if not found:
            raise ConfigError(f"resume_from_checkpoint: there is no run of oncurve in {self.args.output_dir}")
        return found[-1]

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Logs:
        """Evaluate the policy as it is, and return the metrics by TRL's names.

        eval_dataset  rows, a dict of several sets, or the name of one; None: the constructor's. During `train` the run
                      directory keeps what became of these. `ignore_keys` has no meaning: it is of a forward pass

        Raises ConfigError: there is no such data set. DataError: a row that cannot be used.
        """
        kept, opened = self.eval_dataset, self.run.eval_prompts
        step = self.run.trainer.state.step if eval_dataset is None else None
        if isinstance(eval_dataset, str):
            if not isinstance(kept, Mapping) or eval_dataset not in kept:
                raise ConfigError(f"eval_dataset: the constructor was given no data set {shown(eval_dataset)}")
            eval_dataset = kept[eval_dataset]
        try:
            if eval_dataset is not None:
                self.eval_dataset = eval_dataset
                self.run.eval_prompts = prompts_from(self.run, all_rows(eval_dataset))
            if not len(self.run.eval_prompts):
                raise ConfigError(f"evaluate needs held-out prompts: {type(self).__name__}(eval_dataset=...)")
            self._evaluator(step, metric_key_prefix)
        finally:
            self.eval_dataset, self.run.eval_prompts = kept, opened
        metrics = dict(self._hooks.evaluated or {})
        self._hooks.evaluated = None
        return self._hooks.log_evaluation(metrics)

    def _sets(self) -> list[tuple[str, Any]]:
        """Return the held-out rows by what their metrics' names begin with, after `eval`."""
        rows = self.eval_dataset
        return [(f"_{name}", each) for name, each in rows.items()] if isinstance(rows, Mapping) else [("", rows)]

    def _evaluator(self, step: int | None, prefix: str = "eval") -> dict[str, float]:
        """Evaluate after `step`, None: on other rows than the run's; the hooks log it after the step."""
        started = time.perf_counter()
        found = self.run.evaluate(self.args.num_generations_eval or self.args.num_generations)
        seconds = time.perf_counter() - started
        if step is not None:
            self.run.recorded(step, found)
        logs, groups, sets = dict[str, Any](), list(found.sampled), self._sets()
        for name, rows in sets:
            count = len(groups) if len(sets) == 1 else len(prompts_from(self.run, rows))
            found_here = group_logs(groups[:count]) | eval_loss(groups[:count], self.run)
            logs |= {f"{prefix}{name}_{key}": value for key, value in found_here.items()}
            groups = groups[count:]
        samples = sum(len(group.completions) for group in found.sampled)
        self._hooks.evaluated = logs | {
            f"{prefix}_runtime": seconds,
            f"{prefix}_samples_per_second": samples / seconds,
            f"{prefix}_steps_per_second": len(found.sampled) / seconds,
        }
        return found.to_metrics()

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the policy and its tokenizer in Hugging Face form; None: into the run directory itself.

        A folder may exist: its other files stay, and a model that was saved there is replaced. Raises ConfigError: one
        of the model's files is there already, and was not saved so.
        """
        wanted = Path(output_dir) if output_dir is not None else Path(self.args.output_dir)
        folder = self.directory or wanted if wanted == Path(self.args.output_dir) else wanted
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
            made = Path(name) / "model"
            self.run.save_model(made)
            files = [file.relative_to(made) for file in sorted(made.rglob("*")) if file.is_file()]
            known = self._written | {folder / name for name in saved_files(folder)}
            foreign = [file for file in files if (folder / file).exists() and folder / file not in known]
            if foreign:
                raise ConfigError(f"save_model: {folder / foreign[0]} exists already; name another folder")
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (made / file).replace(folder / file)
                self._written.add(folder / file)

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        """Leave it to `save_model`, which writes the card of the run, README.md, next to the weights."""

    def is_world_process_zero(self) -> bool:
        """Return True: a script is one process."""
        return True

    is_local_process_zero = is_world_process_zero

    def log_metrics(self, split: str, metrics: Logs) -> None:
        """Print metrics, one per line."""
        lines = [f"  {name} = {value}" for name, value in sorted(metrics.items())]
        say(Screen(), f"***** {split} metrics *****", *lines)

    def save_metrics(self, split: str, metrics: Logs, combined: bool = True) -> None:
        """Write metrics to `<split>_results.json` in the run directory, and with `combined` to `all_results.json`."""
        for name in (f"{split}_results.json", *(["all_results.json"] if combined else [])):
            durable.write_file(self._folder() / name, durable.to_json(dict(metrics)))

    def save_state(self) -> None:
        """Write `trainer_state.json` to the run directory."""
        self.state.save_to_json(str(self._folder() / "trainer_state.json"))

    def _folder(self) -> Path:
        """Return the run directory. Raises ConfigError: there is none yet."""
        if self.directory is None:
            raise ConfigError("there is no run directory before train()")
        return self.directory

    def push_to_hub(self, *arguments: Any, **named: Any) -> None:
        """Raise ConfigError: nothing is pushed from here."""
        raise ConfigError(f"push_to_hub: {KEYS['push_to_hub'].note}")

    def close(self) -> None:
        """End the workers of rewards. Twice is allowed."""
        self.run.close()

    def end(self) -> None:
        """Close, which TRL's scripts do last."""
        self.close()


def _is_plain(value: Any) -> bool:
    """Return whether a recipe can hold the value of a setting."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (str, int, float))


def saved_files(folder: Path) -> set[str]:
    """Return the files of a model that was saved in the folder, its card too; none where weights or others changed."""
    if durable.verify(folder):
        return set()
    return {durable.MANIFEST, "README.md", *json.loads((folder / durable.MANIFEST).read_bytes())["files"]}


def free_folder(wanted: Path) -> Path:
    """Return `wanted`, or the first free folder after it."""
    return next(each for each in _numbered(wanted) if _is_free(each))


def _numbered(path: Path) -> Iterator[Path]:
    """Give `path`, `path-2`, `path-3` and so on."""
    return chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))


def _is_free(path: Path) -> bool:
    """Return whether a run can begin at `path`. Raises RunDirectoryError: not there, and nowhere near it."""
    try:
        RunDirectory.check_free(path)
    except RunDirectoryError:
        if path.is_dir():
            return False
        raise
    return True
