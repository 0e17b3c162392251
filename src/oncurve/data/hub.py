"""A data set of the Hugging Face hub, by its id, as rows; what was downloaded once is read without the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from oncurve.base.errors import DataError
from oncurve.data.containers import as_rows
from oncurve.data.formats import plain_cell
from oncurve.data.settings import Rows
from oncurve.models.loading import offline, online, quiet


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


ADVICE = {
    "config name is missing": "name the subset: data.subset=NAME",
    "builderconfig": "name another subset: data.subset=NAME",
    "for config": "name another subset: data.subset=NAME",
    "unknown split": "name another split: data.split=NAME",
    "revision": "name another branch, tag or commit: data.revision=NAME",
}
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
