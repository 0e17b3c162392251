"""A run on disk as plain values: how a group is written, and how a whole run is read back."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncurve.base.errors import CheckpointError, RunDirectoryError
from oncurve.durable import read_json, read_log
from oncurve.report.index import RolloutIndex

if TYPE_CHECKING:
    from torch import Tensor

    from oncurve.types import Completion, Group, Score


def group_record(group: Group, advantages: Tensor | Sequence[float] | None = None) -> dict[str, Any]:
    """Return a scored group as one line of `rollouts/step-000012.jsonl.gz`: plain JSON values, nothing non-finite.

    advantages   (n, T) over the group's completions and tokens, or one per completion (n,); None: not known
    returns      {"draw": 11,
                  "prompt": {"id": 7, "text": "2+2=", "ids": [5, 9], "columns": {"answer": "4"}},
                  "completions": [{"text": "4", "ids": [6, 2], "logprobs": [-0.3, -0.1], "ended": "eos", "reward": 1.0,
                                   "valid": true, "parts": {"exact": 1.0}, "fault": null, "advantage": 0.71,
                                   "policy_version": 11}, ...]}

    A prompt of more than one chat message has them as `messages`. Some completions have more: `trained`, false at the
    tokens that the policy did not write; of an episode its `turns` (role, start, end, text, reward) and the
    environment's `outcome`; `extras`, what a reward reports in addition to its value,
    {"component/name": value}; `step_ends` (the index of each step's last token), `step_rewards` and `step_offsets`
    (where in `text` it ends), if its steps were scored.
    `advantage` is the common value of the tokens that the policy wrote; where these differ (steps were scored) it is
    their mean and the token values follow under `advantages`. It is null where the completion is not valid or nothing
    is known. A non-finite number becomes null. Raises ValueError: advantages for another number of completions.
    """
    rows: list[Any] = [None] * len(group.completions)
    if advantages is not None:
        rows = advantages.tolist() if hasattr(advantages, "tolist") else list(advantages)
    if len(rows) != len(group.completions):
        raise ValueError(f"{len(rows)} rows of advantages for {len(group.completions)} completions")
    scores = group.scores or (None,) * len(group.completions)
    prompt = group.prompt
    columns = {key: plain(value) for key, value in prompt.columns.items()}
    asked: dict[str, Any] = {"id": prompt.id, "text": prompt.text, "ids": list(prompt.ids), "columns": columns}
    if prompt.messages is not None and len(prompt.messages) > 1:
        asked["messages"] = plain(prompt.messages)
    return {
        "draw": group.draw,
        "prompt": asked,
        "completions": [
            _completion_record(completion, score, row)
            for completion, score, row in zip(group.completions, scores, rows, strict=True)
        ],
    }


def _completion_record(completion: Completion, score: Score | None, advantages: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "text": completion.text,
        "ids": list(completion.ids),
        "logprobs": _plain_numbers(completion.logprobs),
        "ended": completion.ended,
        "sample_index": completion.sample_index,
        "policy_version": completion.policy_version,
    }
    if completion.trained is not None:
        record["trained"] = list(completion.trained)
    if completion.turns:
        record["turns"] = [plain(asdict(turn)) for turn in completion.turns]
        record["outcome"] = plain(completion.outcome)
    if completion.fault is not None:
        record["fault"] = completion.fault
    if score is not None:
        record |= {
            "reward": plain(score.reward) if score.valid and completion.ended != "given" else None,
            "valid": score.valid,
            "parts": {name: plain(value) for name, value in score.parts.items()},
            "fault": score.fault or completion.fault,
        }
        if score.extras:
            record["extras"] = plain(score.extras)
        if score.step_ends:
            record |= {
                "step_ends": list(score.step_ends),
                "step_rewards": [plain(reward) for reward in score.step_rewards],
                "step_offsets": list(score.step_offsets),
            }
    return record | _advantage_record(completion, score, advantages)


def _advantage_record(completion: Completion, score: Score | None, advantages: Any) -> dict[str, Any]:
    if advantages is None or (score is not None and not score.valid):
        return {"advantage": None}
    if not isinstance(advantages, list):
        return {"advantage": plain(float(advantages))}
    values = advantages[: len(completion.ids)] or [0.0]
    own = [each for each, own in zip(values, completion.trained or (True,) * len(values), strict=False) if own] or [0.0]
    if min(own) == max(own):
        return {"advantage": plain(own[0])}
    return {"advantage": math.fsum(own) / len(own), "advantages": _plain_numbers(values)}


def _plain_numbers(values: Sequence[float]) -> list[float | None]:
    """Return `_plain` of many numbers at once: where the sum is finite, each of them is."""
    return list(values) if math.isfinite(sum(values)) else [plain(value) for value in values]


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: no NaN, no infinity; what JSON does not know is written as its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and torch
        return plain(value.tolist())
    return str(value)


@dataclass(frozen=True)
class RunRecord:
    """A run on disk. What is not there (yet) is empty.

    metrics      one mapping per step, in order            steps       those whose groups are kept, ascending
    config       `config.toml`, parsed and as text; None: it is damaged        environment  `environment.json`
    damage       a sentence for each of these files that is damaged, whose damaged part is left out
    """

    directory: Path
    metrics: tuple[Mapping[str, float], ...] = ()
    steps: tuple[int, ...] = ()
    config: Mapping[str, Any] | None = None
    config_text: str = ""
    environment: Mapping[str, Any] | None = None
    damage: tuple[str, ...] = ()

    def setting(self, section: str, key: str) -> Any:
        """Return a value of `config.toml`; None where it has none."""
        table = (self.config or {}).get(section)
        return table.get(key) if isinstance(table, Mapping) else None

    def groups(self, step: int) -> list[dict[str, Any]]:
        """Return the groups of one step, as `group_record` made them; empty where they are not kept, or no longer."""
        return list(RolloutIndex(self.directory).groups(step))


def read_run(directory: Path) -> RunRecord:
    """Read a run directory, also of a run that goes on (a torn last line is left out) or has just begun.

    A damaged file is left out and named in `damage`.
    Raises RunDirectoryError: no such folder, or nothing of a run in it. CheckpointError: metrics.jsonl cannot be read.
    """
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory} is not a folder. Name the --out of an earlier `oncurve train`.")
    metrics, config, environment = (directory / name for name in ("metrics.jsonl", "config.toml", "environment.json"))
    if not metrics.is_file() and not config.is_file():
        raise RunDirectoryError(f"{directory} has neither metrics.jsonl nor config.toml: it is not a run of oncurve.")
    text = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    damage: list[str] = []
    return RunRecord(
        directory=directory,
        metrics=_metrics(metrics, damage),
        steps=RolloutIndex(directory).steps(),
        config=_parsed(text),
        config_text=text,
        environment=_object(environment, damage),
        damage=tuple(damage),
    )


def _metrics(path: Path, damage: list[str]) -> tuple[dict[str, float], ...]:
    """Return the numbers of each step that can be read."""
    if not path.is_file():
        return ()
    try:
        records = read_log(path)
    except CheckpointError as error:
        damage.append(f"{error}; such lines are left out.")
        records = read_log(path, damaged=True)
    return tuple({key: value for key, value in record.items() if type(value) in (int, float)} for record in records)


def _object(path: Path, damage: list[str]) -> dict[str, Any]:
    """Return the object in a JSON file; empty where there is none."""
    try:
        found = read_json(path) if path.is_file() else {}
    except CheckpointError as error:
        damage.append(f"{error}; it is left out.")
        return {}
    if not isinstance(found, dict):
        damage.append(f"{path} holds no object; it is left out.")
        return {}
    return found


def _parsed(text: str) -> dict[str, Any] | None:
    """Return the tables of a TOML text; None where it does not parse: the report does not depend on it."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
