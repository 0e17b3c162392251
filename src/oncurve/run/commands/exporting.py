"""`oncurve export`: the policy of any checkpoint in Hugging Face form, also while the run goes on.

Its model card, `README.md` of its folder, says what trained it, how far it came, what to cite.
"""

import re
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oncurve import durable
from oncurve.base.errors import CheckpointError, ConfigError, OncurveError, RunDirectoryError, command
from oncurve.base.imports import only_looking
from oncurve.base.paths import usable_path
from oncurve.config import IN_MEMORY, MADE_HERE, RunConfig, explain, load_config, to_tables, unsigned
from oncurve.display import sparkline
from oncurve.durable import read_json, read_log, write_file
from oncurve.evaluate import Interval, wilson
from oncurve.machine.threads import prepare_process
from oncurve.models.loading import ADAPTER, offline
from oncurve.report import EvaluationFiles, rendered
from oncurve.run.building import build_learner
from oncurve.run.directory.folder import CONFIG, HISTORY, RunDirectory
from oncurve.trainer import Checkpoints, FoundCheckpoint

CARD = "README.md"
SHOWN: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "card.toml").read_text("utf-8"))
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def write_card(folder: Path, config: RunConfig, run: Path | None, step: int) -> None:
    """Write `folder/README.md` for the policy in it, which `config` trained for so many steps; `run`: the run's
    directory, if it has one.

    Raises StorageError.
    """
    write_file(folder / CARD, f"{card(config, run, step)}\n".encode("utf-8", "replace"))


def card(config: RunConfig, run: Path | None, step: int) -> str:
    """Return the card as Markdown with the hub's metadata. It holds no path of this machine, only names of files."""
    from huggingface_hub import ModelCardData

    tables = to_tables(config)
    base = str(config.model.path)
    on_hub = HUB_ID.fullmatch(base) is not None and not Path(base).exists()
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if on_hub else None,
        tags=["oncurve", "reinforcement-learning", str(tables["advantage"]["kind"])],
    )
    settings = {f"{name}.{key}": value for name in tables.keys() - {"rewards"} for key, value in tables[name].items()}
    log = run / "metrics.jsonl" if run is not None else None
    lines = read_log(log, damaged=True) if log is not None and log.is_file() else []
    means = [line["reward/mean"] for line in lines if "reward/mean" in line and line["step"] <= step]
    return rendered(
        "model_card.md.j2",
        about=data.to_yaml(),
        name=config.run.name or (run.resolve().name if run is not None else "policy"),
        base=_name(base),
        version=version("oncurve"),
        step=step,
        others=sorted(int(file.stem[7:]) for file in (run / HISTORY).glob("config-*.toml")) if run is not None else [],
        accuracy=list(_accuracy(run, step)) if run is not None else [],
        objective=explain(config).partition("\n")[0],
        rewards=[", ".join(f"{key} = {_shown(value)}" for key, value in each.items()) for each in tables["rewards"]],
        files=list(_data(run)) if run is not None else [],
        settings=[(key, settings[key]) for key in SHOWN["settings"] if key in settings],
        rewards_seen=means,
        curve=sparkline(means),
        papers=_papers(settings),
    )


def _accuracy(run: Path, last: int) -> Iterator[tuple[int, Interval, int]]:
    """Yield step, accuracy and number of held-out problems, of the first evaluation and the last up to a step."""
    files = EvaluationFiles(run)
    steps = [step for step in files.steps() if step <= last]
    for step in dict.fromkeys((*steps[:1], *steps[-1:])):
        with suppress(RunDirectoryError):
            verdicts = [each["right"] for each in files.read(step).values() if each["right"] is not None]
            if verdicts:
                yield step, wilson(sum(verdicts), len(verdicts)), len(verdicts)


def _data(run: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yield key, name, size and digest of each file of the data."""
    record: Any = read_json(run / "run.json") if (run / "run.json").is_file() else {}
    for key, entry in record.get("files", {}).items():
        for part, (size, digest) in entry["parts"].items() if key.startswith(("data.", "sft.")) else ():
            yield key, _name(part or entry["path"]), size, digest


def _papers(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the papers of what a run uses."""
    uses = {f"{key}={value}" for key, value in settings.items()}
    uses |= {"lora"} if settings.get("lora.rank") or settings.get("lora.path") else set()
    return [paper for paper in SHOWN["paper"] if uses & set(paper["when"])]


def _name(path: str) -> str:
    return path if HUB_ID.fullmatch(path) and not Path(path).exists() else Path(path).name


def _shown(value: Any) -> str:
    """Return a value without folders of this machine."""
    return Path(value).name if isinstance(value, str) and "/" in value else str(value)


ATTEMPTS = 3


@dataclass(frozen=True)
class Exported:
    """The place of a written policy, the steps that it has, and its form."""

    path: Path
    step: int
    form: str

    def text(self) -> str:
        """Return one line to read."""
        return f"{self.path}   the policy after step {self.step}: {self.form}"


def export_run(directory: Path, step: str | None = None, out: Path | None = None, adapter: bool = False) -> Exported:
    """Write the policy of a checkpoint of the run in `directory` to `out`, in full precision.

    The run may be going on: nothing of it is locked or changed. No data and no rewards are loaded.

    step      a number, or "best"; None: the newest checkpoint that verifies
    out       None: `export/step-000040` in the directory of the run
    adapter   the adapter alone, in PEFT's form; else an adapter is merged into the weights, and is in `out/adapter` too

    Raises RunDirectoryError: no run, no such checkpoint, or `out` exists. ConfigError: `step` is neither, the run has
    no adapter, or its model was an object in Python. CheckpointError: no checkpoint verifies.
    """
    RunDirectory.check_run(directory)
    with only_looking():
        config, _ = load_config(directory, settings=_stand_ins(directory / CONFIG))
    if config.learner.unread is not None:
        raise ConfigError(f"learner.kind: {config.learner.unread} would run, and an export runs no code")
    if config.model.trust_remote_code and unsigned(directory, ["model.trust_remote_code = true"]):
        fix = "resume it once with --trust, or set it to false"
        raise ConfigError(f"model.trust_remote_code: {directory} is from elsewhere, and an export runs no code: {fix}")
    if not config.model.path:
        again = "give it again (run = oncurve.resume(DIR, model=model)), and write it with run.save(FOLDER)"
        raise ConfigError(f"{directory}: its model was an object in Python, which no file holds; {again}")
    if adapter and not config.lora.adapted:
        raise ConfigError("--adapter: the run trains all weights and has no adapter; leave it out")
    checkpoints = Checkpoints(directory / "checkpoints", config.checkpoint.keep)
    for attempt in range(1, ATTEMPTS + 1):
        found = chosen(checkpoints, step, directory, config)
        number = int(found.record["trainer"]["step"])
        target = _free(directory, out, found.path.name + ("-adapter" if adapter else ""))
        try:
            with only_looking(), offline(bool(unsigned(directory, [MADE_HERE]))):
                return _export(config, found, number, target, adapter)
        except OSError as error:
            raise RunDirectoryError(f"{target} cannot be written: {error.strerror}; choose another --out") from error
        except CheckpointError:
            if found.path.is_dir() or step is not None or attempt == ATTEMPTS:
                raise  # else the run has removed it in the meantime, and there is a newer one
    raise AssertionError


def check_repository(repository: str) -> None:
    """Raise ConfigError where the hub has no such names."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"--push: {error}") from error


def push_export(exported: Exported, repository: str) -> str:
    """Upload an exported policy with its card to `OWNER/NAME` of the hub, which is made as a private one if it is not
    there; its address. Raises OncurveError: the hub refuses, or cannot be reached.
    """
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = str(api.create_repo(repository, private=True, exist_ok=True))
        message = f"oncurve: the policy after step {exported.step}"
        api.upload_folder(
            repo_id=repository, folder_path=exported.path, commit_message=message, ignore_patterns=[durable.MANIFEST]
        )
    except (HTTPError, OSError, RuntimeError) as error:  # the hub's own errors, and an upload that breaks off
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        fix = f"log in by `hf auth login`, and then: hf upload {repository} {exported.path}"
        raise OncurveError(f"{exported.path} is written, and the hub did not take it: {reason}; {fix}") from error
    return address


def chosen(checkpoints: Checkpoints, step: str | None, directory: Path, config: RunConfig) -> FoundCheckpoint:
    """Return the checkpoint that `--step` means: a number, "best", or None, the newest that verifies.

    Raises ConfigError: it is neither. RunDirectoryError: there is none. CheckpointError: it is damaged.
    """
    if step is not None and step != "best" and not step.isdecimal():
        raise ConfigError(f'--step: expected the number of a step or "best", got {step!r}')
    if step is not None and step.isdecimal():
        return checkpoints.at(int(step))
    found = checkpoints.read()
    if found is None:
        go_on = f"kill -USR1 PID; a run that has stopped goes on by: {command('resume', directory)}"
        raise RunDirectoryError(f"{directory} has no checkpoint yet; one is made after this step by: {go_on}")
    about, metric = found.record["trainer"], config.checkpoint.best
    if step != "best":
        return found
    if about.get("best_step"):
        return checkpoints.at(int(about["best_step"]))
    why = "checkpoint.best is not set" if metric is None else f"{metric} has not been evaluated yet"
    if metric is not None and about.get("best") is not None:
        why = f"no step was better than the start ({metric} {about['best']:.4g} before training)"
    there = ", ".join(str(number) for number, _ in durable.numbered(directory / "checkpoints"))
    newest = command("export", directory, "--step", about["step"])
    raise RunDirectoryError(f"{directory} has no best checkpoint: {why}; its steps are {there}: {newest}")


def _export(config: RunConfig, found: FoundCheckpoint, step: int, out: Path, adapter: bool) -> Exported:
    prepare_process(config.run.threads)
    if config.model.quantization is None:  # a GPU may be full of the run
        config = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
    loaded = config.model.build(masters=True, lora=config.lora, seed=config.run.seed)
    with closing(build_learner(config, loaded)) as learner:
        learner.load(found.path, found.record["learner"])
        aside = durable.temporary_name(out)  # it has all that a killed export leaves
        made = aside / out.name
        try:
            learner.export(made)
            write_card(made, config, found.path.parent.parent, step)
            if adapter:
                files = [path for path in (made / ADAPTER).iterdir() if path.name != durable.MANIFEST]
                durable.write_directory(made, {path.name: path.read_bytes() for path in (*files, made / CARD)})
            made.rename(out)
        except durable.StorageError as error:
            raise error.renamed(f"{aside.name}/", "") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    if adapter:
        return Exported(out, step, "the adapter alone, in PEFT's form")
    merged = ", the adapter merged into the weights" if config.lora.adapted else ""
    return Exported(out, step, f"Hugging Face form{merged}")


def _stand_ins(file: Path) -> dict[str, Any]:
    """Return rewards in place of functions that were objects in Python: an export calls none."""
    rewards: list[dict[str, Any]] = []
    with suppress(ValueError):  # what is damaged is told when it is loaded
        rewards = tomllib.loads(file.read_text(encoding="utf-8")).get("rewards", [])
    lost = [str(table.get("function", "")).startswith(IN_MEMORY) for table in rewards]
    if not any(lost):
        return {}
    pairs = zip(rewards, lost, strict=True)
    return {"rewards": [{**table, "function": _not_called} if gone else table for table, gone in pairs]}


def _not_called(completion: str) -> float:
    raise AssertionError


def _free(directory: Path, given: Path | None, name: str) -> Path:
    """Return the free path to export to: `given`, or `export/<name>` in the run's directory.

    What killed exports have left there is removed. Raises RunDirectoryError: something is at the path, nothing can be
    made there, or `export` leads out of the run.
    """
    out = usable_path(given or directory / "export" / name, "--out")
    if given is None and out.parent.is_symlink():
        raise RunDirectoryError(f"{out.parent} is a symbolic link. Remove it, or name a folder by --out.")
    if out.exists() or out.is_symlink():
        raise RunDirectoryError(f"{out} exists; nothing is overwritten. Remove it, or choose another --out.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        durable.sweep_dead(out, all_targets=given is None)
        probe = durable.temporary_name(out)
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise RunDirectoryError(f"{out} cannot be made: {error.strerror}; choose another --out") from error
    return out
