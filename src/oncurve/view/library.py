"""The runs below a folder as plain values: the answer to each question of the pages. Nothing here imports torch."""

import base64
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError, validate_call

from oncurve import durable
from oncurve.base.errors import OncurveError, RunDirectoryError
from oncurve.metrics import METRICS
from oncurve.report import EvaluationFiles, RolloutIndex, RunRecord, look_at_flips, most_changed, plain, read_run
from oncurve.run import find_runs, list_runs

FILES = ("config.toml", "environment.json", "metrics.jsonl")
FOLDERS = ("rollouts", "evaluations")
"""The entries of a run that are read; a run in which one of them leads elsewhere is refused."""

REFUSED = {"state": "refused", "step": 0, "steps": None, "written": 0.0, "reward": None, "accuracy": None}
"""The row of a run of which nothing is read."""

QUESTIONS = frozenset(
    ["runs", "declared", "stamp", "run", "metrics", "groups", "group", "changed", "prompt", "flips", "doctor"]
)
"""The methods of a `Library` that answer the pages."""

Search = tuple[Mapping[str, Any] | None, Iterator[tuple[int, bool]], np.ndarray[Any, Any]]
"""The columns of the step that is searched, what is left of it, and what is known of each group."""

MOST_ROWS = 200
MOST_METRIC_BYTES = 4 << 20
NUMBERS = ("before", "after", "entropy", "kl", "logprobs", "advantages")
"""The numbers of tokens, which are shorter and quicker as bytes than as text: 32,000 tokens have 200,000."""

SEARCH_SECONDS, MOST_SEARCHES, MOST_CHANGED = 0.4, 4, 16
DOCTOR_SECONDS = 120
LOOK_AGAIN_SECONDS = 2.0
"""The time for which the list of folders is kept: below it live a hundred thousand files."""

FILTERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "constant": lambda columns: columns["spread"] == 0,
    "wrong": lambda columns: columns["right"] == 0,
    "solved": lambda columns: (columns["right"] == columns["size"]) & (columns["size"] > 0),
    "truncated": lambda columns: columns["truncated"] > 0,
    "invalid": lambda columns: columns["invalid"] > 0,
}

SORTS = ("group", "mean", "spread", "right", "truncated", "invalid", "largest", "length")


class Library:
    """The runs in and below `root`. A question names a run; the path is looked up and never made from the name."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._found: tuple[float, dict[str, Path]] = (-1e9, {})
        self._known: dict[tuple[Callable[[Path], Any], Path], tuple[str, Any]] = {}
        self._indexes: dict[Path, RolloutIndex] = {}
        self._changed: dict[tuple[str, int], tuple[str, list[dict[str, Any]] | None]] = {}
        self._one_doctor, self._one_search = threading.Lock(), threading.Lock()
        self._searches: dict[tuple[RolloutIndex, int, str], Search] = {}

    def answer(self, question: str, arguments: Mapping[str, str]) -> Any:
        """Return the answer as plain values.

        Raises KeyError: there is no such thing. ValueError: an argument is missing, unknown or not a number.
        OncurveError: the run cannot be read.
        """
        if question not in QUESTIONS:
            raise KeyError(question)
        try:
            return validate_call(getattr(self, question))(**arguments)
        except ValidationError as error:
            found = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ValueError("; ".join(found)) from None

    def names(self) -> dict[str, Path]:
        """Return the runs by name: the path below the root, or the root's own name where it is a run."""
        if time.monotonic() - self._found[0] > LOOK_AGAIN_SECONDS:
            paths = list(find_runs(self.root))
            names = (self.root.name if path == self.root else path.relative_to(self.root).as_posix() for path in paths)
            self._found = (time.monotonic(), dict(zip(names, paths, strict=True)))
        return self._found[1]

    def declared(self) -> list[dict[str, Any]]:
        """Return the declarations of the metrics."""
        kept = ("name", "unit", "formula", "meaning", "advice")
        return [{key: asdict(metric)[key] for key in kept} for metric in METRICS.values()]

    def runs(self) -> list[dict[str, Any]]:
        """Return one row per run, the last to write first."""
        rows = []
        for name, path in self.names().items():
            row = REFUSED if self._by_stamp(_foreign, path) else self._by_stamp(_about, path)[0]
            rows.append({"run": name, "stamp": self._stamp(path), **row})
        return sorted(rows, key=lambda row: -row["written"])

    def stamp(self, run: str) -> str:
        """Return a text that changes when the run writes, starts or stops: cheap enough for every second."""
        return self._stamp(self._path(run))

    def run(self, run: str) -> dict[str, Any]:
        """Return what a run is: settings, environment, kept steps, damage."""
        path = self._path(run)
        row, record = self._by_stamp(_about, path)
        return {
            "run": run,
            **row,
            "folder": str(path),
            "settings": dict(_flat(record.config or {})),
            "text": record.config_text,
            "environment": record.environment,
            "kept": list(self._index(path).steps()),
            "evaluations": list(EvaluationFiles(path).steps()),
            "damage": list(record.damage),
        }

    def metrics(self, run: str, offset: int = 0) -> dict[str, Any]:
        """Return the lines of `metrics.jsonl` from a byte on, at most 4 MiB, and the byte after them.

        Where the file does not have a line's end before `offset`, it was cut by a resume: `from` is then 0.
        """
        path = self._path(run) / "metrics.jsonl"
        if not path.is_file():
            return {"from": 0, "to": 0, "more": False, "lines": []}
        with open(path, "rb") as file:
            start = offset if offset > 0 and file.seek(offset - 1) and file.read(1) == b"\n" else 0
            file.seek(start)
            content = file.read(MOST_METRIC_BYTES)
            content = content[: content.rfind(b"\n") + 1]
            more = bool(content) and file.seek(0, 2) > start + MOST_METRIC_BYTES
        lines = [line for each in content.splitlines() if (line := _numbers(each)) is not None]
        return {"from": start, "to": start + len(content), "more": more, "lines": lines}

    def groups(
        self,
        run: str,
        step: int,
        sort: str = "group",
        falling: int = 0,
        only: str = "",
        text: str = "",
        start: int = 0,
        count: int = 100,
    ) -> dict[str, Any]:
        """Return rows `start` to `start + count` (200 at most) of a step's groups, sorted and filtered, and how many
        there are.

        A `text` is looked for in whole prompts and completions, for `SEARCH_SECONDS` at a time: `searched` says in how
        many groups so far. The same question goes on where the last one ended.
        """
        index = self._index(self._path(run))
        columns = index.columns(step)
        if sort not in SORTS or (only and only not in FILTERS):
            raise ValueError("no such order or filter")
        kept = np.ones(len(columns["group"]), dtype=bool) if not only else np.asarray(FILTERS[only](columns))
        having = self._search(index, step, text) if text else np.ones(len(kept))
        kept &= having == 1
        values = np.asarray(columns[sort], dtype="f8")
        order = np.argsort(-values if falling else values, kind="stable")  # NaN, not known, is last both ways
        order = order[kept[order]]
        start, end = max(0, start), max(0, start) + min(MOST_ROWS, max(0, count))
        return {
            "total": len(kept),
            "found": len(order),
            "searched": int((having >= 0).sum()),
            "verified": bool((columns["right"] >= 0).any()),
            "start": start,
            "rows": index.rows(step, order[start:end].tolist()),
        }

    def group(self, run: str, step: int, group: int) -> dict[str, Any]:
        """Return a group, with its row, its neighbours' numbers, and the numbers of its tokens as base64 of float32."""
        index = self._index(self._path(run))
        row, numbers = index.row(step, group), index.columns(step)["group"]
        lower, higher = numbers[numbers < group], numbers[numbers > group]
        near = {
            "previous": int(lower.max()) if len(lower) else None,
            "next": int(higher.min()) if len(higher) else None,
        }
        found = index.group(step, group)
        for item in found["completions"]:
            given = {name: np.array(item[name], dtype="<f4") for name in NUMBERS if item.get(name)}
            item |= {name: base64.b64encode(values.tobytes()).decode() for name, values in given.items()}
        return {**found, "row": row, **near}

    def changed(self, run: str, step: int) -> list[dict[str, Any]] | None:
        """Return the tokens that a step changed most; None where it was not measured."""
        index = self._index(path := self._path(run))
        key, stamp = (run, step), self._stamp(path)
        of, found = self._changed.get(key, ("", None))
        if of != stamp:  # to look at each token takes seconds of large steps
            found = most_changed(index, run, step)
            self._changed = dict([*self._changed.items(), (key, (stamp, found))][-MOST_CHANGED:])
        return found

    def prompt(self, run: str, prompt: int) -> list[dict[str, Any]]:
        """Return the rows of all groups of one prompt, with their steps, in order."""
        index = self._index(self._path(run))
        return [{"step": step, **index.row(step, group)} for step, group in index.prompt(prompt)]

    def flips(self, run: str, first: int, last: int, problem: int | None = None) -> dict[str, Any]:
        """Return what became of the held-out problems between the evaluations after two steps, or of one."""
        return look_at_flips(self._path(run), first, last, problem)

    def doctor(self, run: str) -> Any:
        """Return what `oncurve doctor` finds, from a process of its own: its rules need torch, and seconds."""
        path = self._path(run)
        with self._one_doctor:
            return self._by_stamp(_doctored, path)

    def _search(self, index: RolloutIndex, step: int, text: str) -> np.ndarray[Any, Any]:
        """Go on looking for a text; returns 1 for groups that have it, 0 for others, -1 where it was not sought yet."""
        columns, key = index.columns(step), (index, step, text)
        with self._one_search:
            of, rest, having = self._searches.pop(key, (None, iter(()), np.zeros(0)))
            if of is not columns:
                rest, having = enumerate(index.having(step, text)), np.full(len(columns["group"]), -1)
            self._searches = dict([*self._searches.items(), (key, (columns, rest, having))][-MOST_SEARCHES:])
            until = time.monotonic() + SEARCH_SECONDS
            for place, has in rest:
                having[place] = has
                if time.monotonic() > until:
                    break
            return having

    def _path(self, run: str) -> Path:
        names = self.names()
        alone = [name for name in names if name.rpartition("/")[2] == run]  # as links of other commands name it
        path = names[alone[0] if run not in names and len(alone) == 1 else run]
        if wrong := self._by_stamp(_foreign, path):
            raise RunDirectoryError(f"{wrong}: the run is not shown")
        return path

    def _by_stamp(self, read: Callable[[Path], Any], path: Path) -> Any:
        """Return `read(path)` of a run, which is read again when its stamp is another one."""
        stamp = self._stamp(path)
        if self._known.get((read, path), ("",))[0] != stamp:
            self._known[read, path] = (stamp, read(path))
        return self._known[read, path][1]

    def _index(self, path: Path) -> RolloutIndex:
        return self._indexes.setdefault(path, RolloutIndex(path))

    @staticmethod
    def _stamp(path: Path) -> str:
        found = [str(int(durable.is_held(path / ".lock")))]
        for name in (*FILES, *FOLDERS, "model/manifest.json"):
            try:
                about = (path / name).stat()
            except OSError:
                continue
            found.append(f"{about.st_size:x}.{about.st_mtime_ns:x}")
        return "-".join(found)


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Return the settings of nested tables by dotted key: `rewards.0.weight`."""
    tables = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if not isinstance(value, dict) and not tables:
        yield place, value if isinstance(value, (str, int, float, list)) else str(value)
        return
    for key, inner in enumerate(value) if tables else value.items():
        yield from _flat(inner, f"{place}.{key}" if place else str(key))


def _foreign(path: Path) -> str:
    """Return a sentence on an entry of a run that leads elsewhere; "" where none does."""
    return "".join(durable.foreign(path, FILES, FOLDERS)[:1])


def _about(path: Path) -> tuple[dict[str, Any], RunRecord]:
    """Return a run's row (state, steps, last reward and last accuracy), and its record without the metrics, which are
    large.
    """
    try:
        record = read_run(path)
    except OncurveError as error:
        record = RunRecord(path, damage=(str(error),))
    (listed,) = list_runs(path)
    found = {name: getattr(listed, name) for name in ("state", "step", "steps", "metric", "best", "best_step")}
    names = {"reward/mean": "reward", "eval/accuracy": "accuracy"}
    last = {names[key]: line[key] for line in record.metrics for key in names.keys() & line.keys()}
    written = {"written": time.time() - listed.age_seconds}
    return {**found, **written, "reward": None, "accuracy": None, **last}, replace(record, metrics=())


def _numbers(line: bytes) -> dict[str, float] | None:
    """Return the numbers of a line of metrics by name; None where it is damaged."""
    try:
        found = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {key: value for key, value in found.items() if type(value) in (int, float)}


def _doctored(path: Path) -> Any:
    command = [sys.executable, "-m", "oncurve", "doctor", str(path), "--json"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOCTOR_SECONDS, check=False
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise OncurveError(f"the doctor did not answer for {path}") from error


def encoded(value: Any) -> bytes:
    """Return JSON that every browser reads: no NaN, and half a character as an escape."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode()
