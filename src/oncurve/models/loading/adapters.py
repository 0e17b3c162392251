"""Trained adapters by a folder or a hub id."""

from __future__ import annotations

import json
from pathlib import Path

from oncurve.base.errors import ModelError
from oncurve.models.adapters.files import CONFIG, FILES, StoredAdapter, read_adapter
from oncurve.models.adapters.inject import import_peft
from oncurve.models.loading.checks import explained
from oncurve.models.loading.hub import online


def stored_adapter(path: str, key: str = "lora.path") -> StoredAdapter:
    """Return the adapter that `path`, the value of the setting `key`, names.

    Raises ModelError: no such folder, no adapter in it, or one that oncurve does not compute.
    """
    peft = import_peft()
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise ModelError(f"{path} is a file; {key} names a folder with an adapter in PEFT's form, or a hub id")
        if path[:1] in ("", ".", "/", "~") or path.count("/") != 1:
            raise ModelError(f"{key}: {path}: no such directory")
        folder = _fetched(path)
    return read_adapter(folder, peft, key)


def is_adapter(folder: Path) -> bool:
    """Return whether `folder` holds an adapter in PEFT's form, and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of_adapter(folder: Path) -> str:
    """Return the base model that the adapter in `folder` names. Raises ModelError: it names none."""
    try:
        base = json.loads((folder / CONFIG).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error}") from error
    if not isinstance(base, str) or not base:
        raise ModelError(f"{folder}: the adapter names no base model; name it: model.path=FOLDER")
    return base


def _fetched(name: str) -> Path:
    from huggingface_hub import snapshot_download

    with explained(name, "adapter", None):
        return Path(snapshot_download(name, allow_patterns=list(FILES), local_files_only=not online()))
