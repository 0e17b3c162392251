"""Rows from files and from the hub: the kind "files" of `[data]`.

A path names a file, a folder, a pattern with `*`, or a data set of the hub, which is asked where nothing of that name
is here. The rows of a folder are those of its files in the order of their names, so that numbers of rows stay the same.
"""

import hashlib
import json
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from glob import glob
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from oncurve import durable
from oncurve.base.errors import DataError
from oncurve.base.paths import is_data_set_id
from oncurve.components import Impossible, Inert
from oncurve.data.containers import SPLITS, as_rows
from oncurve.data.formats import FORMATS, plain_cell, read_file, suffix_of
from oncurve.data.settings import Content, DataSettings, Rows
from oncurve.models.loading import offline, online, quiet

Name = Annotated[str, Field(min_length=1)]

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
RULES: dict[str, str] = TABLES["rules"]
"""The sentence of each rule between a source's own settings."""


class Files(DataSettings):
    """Files of rows, JSONL or a JSON array, parquet or CSV, or a data set of the Hugging Face hub."""

    path: str | tuple[str, ...] | None = None
    """A file, relative to the recipe; a folder of files; a pattern, `"rows/*.parquet"`; a data set of the hub,
    `"openai/gsm8k"`; or a list of these."""

    split: Name | None = None
    """The split to train on, of a folder or of the hub; none: "train" of the hub, and all files of a folder without
    splits."""

    subset: Name | None = None
    """Of a data set of the hub that has several: which one, like `"main"`."""

    revision: Name | None = None
    """Of a data set of the hub: the branch, tag or commit; none: the main branch."""

    weights: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None = None
    """The share of the prompts that each entry of a `path` with several gives, `[3, 1]`; none: as many as it has
    rows. An epoch is still as many prompts as there are rows; a source that gives more than its rows repeats them."""

    eval_path: str | tuple[str, ...] | None = None
    """Files of held-out rows, named like `path`."""

    eval_split: Name | None = None
    """The split of held-out rows, of `eval_path` where it is set, else of `path`."""

    eval_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Without `eval_path` and `eval_split`: the share of the rows to hold out, the same ones in every run."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda c: c.eval_path is not None and c.eval_path == c.path and c.eval_split is None,
            RULES["held_out_path_is_trained"],
        ),
        Impossible(
            lambda c: (
                c.eval_split is not None and c.eval_path in (None, c.path) and c.eval_split == (c.split or "train")
            ),
            RULES["held_out_split_is_trained"],
        ),
        Impossible(lambda c: c.weights is not None and len(c.weights) != len(_listed(c.path)), RULES["weights_differ"]),
    )
    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("data.eval_fraction",),
            ("data.eval_path", "data.eval_split"),
            lambda c: c.eval_path is not None or c.eval_split is not None,
            "data.eval_path or data.eval_split has the held-out rows",
        ),
        Inert(
            ("data.subset", "data.revision"),
            ("data.path", "data.eval_path"),
            lambda c: not any(map(is_data_set_id, (*_listed(c.path), *_listed(c.eval_path)))),
            "no path is a data set of the hub",
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _one_path_is_no_list(cls, given: object) -> object:
        """Written as a list of one, a path is the path alone: both are the same run."""
        if not isinstance(given, Mapping):
            return given
        lists = {key: given[key] for key in ("path", "eval_path") if isinstance(given.get(key), list | tuple)}
        return {**given, **{key: paths[0] for key, paths in lists.items() if len(paths) == 1}}

    @field_validator("path", "eval_path")
    @classmethod
    def _names_something(cls, path: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if path is not None and not (path and all(_listed(path))):
            raise ValueError("should have at least 1 character; name a file, a folder or a data set of the hub")
        return path

    @property
    def holds_out(self) -> bool:
        """Other files, another split, or a share of the rows."""
        return self.eval_path is not None or self.eval_split is not None or self.eval_fraction > 0

    def missing(self) -> list[str]:
        """Return the path."""
        if self.path:
            return []
        return [
            "data.path: missing; name a file (JSONL, parquet, CSV), a folder or a data set of the hub, or choose "
            "another data.kind: task, seeds, reasoning_gym"
        ]

    def read(self, base: Path | None) -> tuple[Rows, Rows]:
        """Return training rows and held-out rows. Raises DataError: there is no path, or what it names cannot be
        read.
        """
        rows = self._joined("data.path", base, self.weights)
        if self.eval_path is None and self.eval_split is None:
            return rows.hold_out(self.eval_fraction)
        return rows, self._joined("data.eval_path", base)

    def content(self, base: Path | None) -> Mapping[str, Content]:
        """Return size and hash of every file; of the hub, of the rows. A single file that is missing is left out."""
        keys = ["data.path"] if self.path else []
        keys += ["data.eval_path"] if self.path and (self.eval_path or self.eval_split) else []
        found = {key: self._content(key, base) for key in keys}
        return {key: content for key, content in found.items() if content.parts}

    def _chosen(self, key: str) -> tuple[tuple[str, ...], str | None]:
        """Return the paths of `key`, and the split of them."""
        if key == "data.path":
            return _listed(self.path), self.split or ("train" if self.eval_split and self.eval_path is None else None)
        return _listed(self.eval_path) or _listed(self.path), self.eval_split

    def _source(self, key: str, path: str, split: str | None, base: Path | None) -> list[Path] | Rows:
        """Return the files that a path names, or the rows of a data set of the hub."""
        if _at(path, base).exists() or not is_data_set_id(path):
            return _files_of(key, path, split, base)
        if split is None and key == "data.eval_path":
            raise DataError(f'data.eval_split: missing; name the split of {path} to evaluate on, like "test"')
        return read_hub(path, self.subset, split or "train", self.revision, key)

    def _joined(self, key: str, base: Path | None, weights: Sequence[float] | None = None) -> Rows:
        """Return the rows of all files of `key`, numbered through; `weights` has one number for each path."""
        paths, split = self._chosen(key)
        if not paths:
            raise DataError("data.path: missing; name a file of rows: JSONL, parquet or CSV")
        named = [self._source(key, path, split, base) for path in paths]
        read = [[s] if isinstance(s, Rows) else [read_file(file, key) for file in s] for s in named]
        files = [file for source in read for file in source]
        starts = [0, *accumulate(len(file.items) for file in files)]

        def place(number: int) -> str:
            at = bisect_right(starts, number) - 1
            return files[at].place(files[at].numbers[number - starts[at]])

        items = files[0].items if len(files) == 1 else [row for file in files for row in file.items]
        firsts = [0, *accumulate(sum(len(file.items) for file in source) for source in read)]
        return Rows(items, range(len(items)), place, mixture=tuple(zip(firsts, weights or (), strict=False)))

    def _content(self, key: str, base: Path | None) -> Content:
        paths, split = self._chosen(key)
        parts: dict[str, tuple[int, str]] = {}
        for path in paths:
            source = self._source(key, path, split, base)
            if isinstance(source, Rows):
                lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in source.items)
                text = "".join(lines).encode("utf-8", "surrogatepass")
                parts[f"{path} {split or 'train'}"] = (len(text), hashlib.sha256(text).hexdigest())
                continue
            for file in source:
                if not file.is_file() and len(paths) > 1:
                    read_file(file, key)  # says what is wrong
                if file.is_file():
                    parts[str(file)] = (file.stat().st_size, durable.sha256(file))
        if parts and len(paths) == 1 and _at(paths[0], base).is_file():
            return Content(next(iter(parts)), {"": next(iter(parts.values()))})
        return Content(", ".join(paths), parts)


def _listed(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if paths is None else (paths,) if isinstance(paths, str) else tuple(paths)


def _at(path: str, base: Path | None) -> Path:
    return (base or Path()) / Path(path).expanduser()


def _files_of(key: str, path: str, split: str | None, base: Path | None) -> list[Path]:
    """Return the files that a path names, in the order of their names; one that does not exist is for its reader to
    report.

    Raises DataError: a folder or a pattern without files of rows, or with several splits of which none is chosen.
    """
    at = _at(path, base)
    if at.is_dir():
        found = [file for file in at.rglob("*") if not any(part[0] == "." for part in file.relative_to(at).parts)]
    elif any(mark in path for mark in "*?[") and not at.exists():
        found = [Path(name) for name in glob(str(at), recursive=True)]
        at = Path(*at.parts[: next(n for n, part in enumerate(at.parts) if any(mark in part for mark in "*?["))])
    elif split is None:
        return [at]
    else:
        raise DataError(f"data.split: {at} is one file, which has no splits; leave data.split and data.eval_split out")
    files = sorted(file for file in found if suffix_of(file) in FORMATS and file.is_file())
    if not files:
        has = ", ".join(sorted(file.name for file in found)[:8]) or "nothing"
        if not found and any(mark in path for mark in "*?["):
            raise DataError(f"{key}: no file fits the pattern {path}")
        raise DataError(f"{key}: {path} has no file of rows ({', '.join(FORMATS)}); it has: {has}")
    splits = {name for name in SPLITS if any(_is_of(name, file, at) for file in files)}
    if split is None and len(splits) > 1:
        name = "data.split" if key == "data.path" else "data.eval_split"
        raise DataError(f"{key}: {path} has the splits {', '.join(sorted(splits))}; choose one, like {name}=train")
    chosen = [file for file in files if split is None or _is_of(split, file, at)]
    if not chosen:
        has = ", ".join(str(file.relative_to(at)) for file in files[:8])
        raise DataError(f"{key}: {path} has no files of the split {split!r}; its files are: {has}")
    return chosen


def _is_of(split: str, file: Path, folder: Path) -> bool:
    """Return whether a file is of a split by its name or its folder's: `train.jsonl`,
    `train-00000-of-00002.parquet`.
    """
    *folders, name = file.relative_to(folder).parts
    return split in folders or any(name.startswith(split + mark) for mark in ".-_")


@lru_cache(maxsize=4)  # a run reads training rows, held-out rows and their hash
def read_hub(name: str, subset: str | None, split: str, revision: str | None, key: str) -> Rows:
    """Return the rows of a split. `key` is the setting with the id.

    Raises DataError: the hub cannot be reached and the data set was not downloaded before; there is no such data set,
    subset, split or revision; it may not be read; a column that holds bytes.
    """
    local = not online()
    with _quietly(), quiet(), offline(local):
        import datasets

        try:
            commit = _commit(name, revision, local)
            found = datasets.load_dataset(name, subset, split=split, revision=commit)
        except Exception as error:  # the client raises errors of every kind
            raise DataError(_explained(error, name, key, local)) from error
    if commit is not None and not any(commit in Path(file["filename"]).parts for file in found.cache_files):
        raise DataError(  # the client takes what it has, whatever its revision, where the hub does not answer
            f"data.revision: the copy of {name} on this machine is not {revision}, or nothing says so, and the hub "
            "cannot be reached; leave data.revision out, or connect"
        )
    rows = [{column: plain_cell(value, column, name) for column, value in row.items()} for row in as_rows(found)]
    if not rows:
        raise DataError(f"{key}: the split {split} of {name} has no rows")
    return Rows(rows, range(1, len(rows) + 1), lambda number: f"{name} {split} row {number}")


def _commit(name: str, revision: str | None, local: bool) -> str | None:
    """Return the commit that a revision means; None: the newest. Without the hub only a commit itself can be told."""
    from huggingface_hub import HfApi

    return revision if revision is None or local else HfApi().dataset_info(name, revision=revision, timeout=30).sha


def _explained(error: Exception, name: str, key: str, local: bool) -> str:
    """Return what went wrong and what to do, in one line."""
    said = " ".join(str(error).split())
    fix = next((advice for mark, advice in ADVICE.items() if mark in said.lower()), None)
    if fix is None and local:
        return (
            f"{key}: there is no file or folder {name}; as a data set of the hub it was not downloaded before, and the "
            "hub cannot be reached (no connection, or HF_HUB_OFFLINE is set): connect once, or write the rows to a "
            "file and name that"
        )
    fix = fix or "check the id; of a private or gated one, log in with `hf auth login`"
    return f"{key}: the data set {name} cannot be loaded: {said[:400].rstrip('.')}; {fix}"


ADVICE: dict[str, str] = TABLES["advice"]
"""What to do, by a part of the client's message."""


@contextmanager
def _quietly() -> Iterator[None]:
    """Return a context without the progress bars and remarks of datasets; what is off already stays off."""
    from datasets.utils import disable_progress_bars, enable_progress_bars, is_progress_bar_enabled, logging

    shown: Any = is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            enable_progress_bars()
