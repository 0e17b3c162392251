"""The model card of a trained policy, `README.md` of its folder: what trained it, how far it came, what to cite."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oncurve.base.errors import RunDirectoryError
from oncurve.base.output import visible
from oncurve.config import RunConfig, explain, to_tables
from oncurve.display import sparkline
from oncurve.durable import read_json, read_log, write_file
from oncurve.evaluate import Interval, wilson
from oncurve.report import EvaluationFiles

CARD = "README.md"
PAPERS = Path(__file__).parent / "papers.toml"
SETTINGS = {
    "run": ("steps", "seed"),
    "data": ("prompts_per_step",),
    "rollout": ("group_size", "max_new_tokens", "temperature"),
    "learner": ("learning_rate", "ppo_epochs", "minibatches"),
    "kl": ("coef",),
    "lora": ("rank",),
}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CITATION = """@misc{{{key},
  title = {{{title}}},
  author = {{{author}}},
  year = {{{year}}},
  eprint = {{{id}}},
  archivePrefix = {{arXiv}},
}}"""


def write_card(folder: Path, config: RunConfig, run: Path | None) -> None:
    """Write `folder/README.md` for the policy in it, which `config` trained; `run`: the run's directory, if it has one.

    Raises StorageError.
    """
    write_file(folder / CARD, card(config, run).encode("utf-8", "replace"))


def card(config: RunConfig, run: Path | None) -> str:
    """Return the card as Markdown with the hub's metadata. It holds no path of this machine, only names of files."""
    from huggingface_hub import ModelCardData

    tables = to_tables(config)
    name = config.run.name or (run.resolve().name if run is not None else "policy")
    base = str(config.model.path)
    on_hub = HUB_ID.fullmatch(base) is not None and not Path(base).exists()
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if on_hub else None,
        tags=["oncurve", "reinforcement-learning", str(tables["advantage"]["kind"])],
    )
    rewards = [", ".join(f"{key} = {_shown(value)}" for key, value in each.items()) for each in tables["rewards"]]
    lines = [
        "---", data.to_yaml(), "---", "", f"# {_inline(name)}", "",
        f"{_inline(_name(base))}, trained by [oncurve](https://github.com/oncurve/oncurve) {version("oncurve")}.", "",
        *_accuracy(run), "## Objective", "", "```text", explain(config).partition("\n")[0], "```", "",
        "## Reward and data", "", *(f"* `{_inline(each)}`" for each in rewards), *_data(run), "",
        "## Settings", "", "| setting | value |", "|---|---|",
    ]  # fmt: skip
    for section, keys in SETTINGS.items():
        lines += [f"| `{section}.{key}` | `{tables[section][key]}` |" for key in keys if key in tables[section]]
    lines += ["", *_curve(run), "## Citation", "", "```bibtex", *_citations(tables), "```", ""]
    return visible("\n".join(lines))


def _accuracy(run: Path | None) -> Iterator[str]:
    """Yield the accuracy on held-out problems, before and after, with 95 % intervals."""
    files = EvaluationFiles(run) if run is not None else None
    steps = files.steps() if files is not None else ()
    found: list[tuple[int, Interval, int]] = []
    for step in dict.fromkeys((*steps[:1], *steps[-1:])):
        try:
            verdicts = (
                [each["right"] for each in files.read(step).values() if each["right"] is not None] if files else []
            )
        except RunDirectoryError:
            continue
        if verdicts:
            found.append((step, wilson(sum(verdicts), len(verdicts)), len(verdicts)))
    if found:
        yield from ("## Accuracy on held-out problems", "", "| after step | accuracy (95 % interval) | problems |")
        yield "|---|---|---|"
        for step, share, count in found:
            shown = f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"
            yield f"| {step} | {shown} | {count:,} |"
        yield ""


def _data(run: Path | None) -> Iterator[str]:
    """Yield a line per file of the data, with its digest."""
    record: Any = read_json(run / "run.json") if run is not None and (run / "run.json").is_file() else {}
    for key, entry in record.get("files", {}).items():
        for part, (size, digest) in entry["parts"].items() if key.startswith(("data.", "sft.")) else ():
            yield f"* `{key}`: `{_inline(_name(part or entry['path']))}`, {size:,} bytes, sha256 `{digest}`"


def _curve(run: Path | None) -> list[str]:
    log = run / "metrics.jsonl" if run is not None else None
    lines = read_log(log, damaged=True) if log is not None and log.is_file() else []
    values = [line["reward/mean"] for line in lines if "reward/mean" in line]
    if len(values) < 2:
        return []
    curve = f"{values[0]:.3f} {sparkline(values)} {values[-1]:.3f}"
    return ["## Mean reward", "", "```text", curve, "```", ""]


def _citations(tables: dict[str, Any]) -> Iterator[str]:
    sections = {name: table for name, table in tables.items() if name != "rewards"}
    uses = {f"{name}.{key}={value}" for name, table in sections.items() for key, value in table.items()}
    uses |= {"lora"} if tables["lora"].get("rank") or tables["lora"].get("path") else set()
    for paper in tomllib.loads(PAPERS.read_text(encoding="utf-8"))["paper"]:
        if uses & set(paper["when"]):
            key = paper["author"].partition(",")[0].strip("{}").lower() + "20" + paper["id"][:2]
            yield CITATION.format(key=key, year=f"20{paper['id'][:2]}", **paper)


def _name(path: str) -> str:
    return path if HUB_ID.fullmatch(path) and not Path(path).exists() else Path(path).name


def _shown(value: Any) -> str:
    """Return a value without folders of this machine."""
    text = str(value)
    return Path(text).name if isinstance(value, str) and "/" in text else text


def _inline(text: str) -> str:
    return " ".join(text.replace("`", "'").split())
