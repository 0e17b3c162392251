"""The model card of a trained policy, `README.md` of its folder: what trained it, how far it came, what to cite."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oncurve.base.errors import RunDirectoryError
from oncurve.config import RunConfig, explain, to_tables
from oncurve.display import sparkline
from oncurve.durable import read_json, read_log, write_file
from oncurve.evaluate import Interval, wilson
from oncurve.report import EvaluationFiles, rendered

CARD = "README.md"
SHOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def write_card(folder: Path, config: RunConfig, run: Path | None) -> None:
    """Write `folder/README.md` for the policy in it, which `config` trained; `run`: the run's directory, if it has one.

    Raises StorageError.
    """
    write_file(folder / CARD, f"{card(config, run)}\n".encode("utf-8", "replace"))


def card(config: RunConfig, run: Path | None) -> str:
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
    means = [line["reward/mean"] for line in lines if "reward/mean" in line]
    return rendered(
        "model_card.md.j2",
        about=data.to_yaml(),
        name=config.run.name or (run.resolve().name if run is not None else "policy"),
        base=_name(base),
        version=version("oncurve"),
        accuracy=list(_accuracy(run)) if run is not None else [],
        objective=explain(config).partition("\n")[0],
        rewards=[", ".join(f"{key} = {_shown(value)}" for key, value in each.items()) for each in tables["rewards"]],
        files=list(_data(run)) if run is not None else [],
        settings=[(key, settings[key]) for key in SHOWN["settings"] if key in settings],
        rewards_seen=means,
        curve=sparkline(means),
        papers=_papers(settings),
    )


def _accuracy(run: Path) -> Iterator[tuple[int, Interval, int]]:
    """Yield step, accuracy and number of held-out problems, of the first evaluation and the last."""
    files = EvaluationFiles(run)
    steps = files.steps()
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
