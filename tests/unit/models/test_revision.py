"""`model.revision`: a branch or commit of a hub id, here from files that were downloaded before."""

import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from oncurve.errors import ModelError
from oncurve.forecast.unloaded import read_model_config
from oncurve.models import ModelConfig, tiny

COMMITS = {"main": "a" * 40, "dev": "b" * 40}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that cannot be reached, and a cache with two revisions of one model."""
    for branch, commit in COMMITS.items():
        folder = tmp_path / "models--lab--tiny"
        snapshot = folder / "snapshots" / commit
        shutil.copytree(tiny.path(), snapshot, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / branch).write_text(commit)
        if branch == "dev":
            weights = {name: 2 * tensor for name, tensor in load_file(snapshot / "model.safetensors").items()}
            save_file(weights, snapshot / "model.safetensors", {"format": "pt"})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def first_of(model: ModelConfig) -> torch.Tensor:
    return next(model.build().model.module.parameters()).detach()


@pytest.mark.usefixtures("hub")
def test_a_branch_and_its_commit_are_loaded() -> None:
    dev = ModelConfig(path="lab/tiny", revision="dev", dtype="float32")
    assert torch.equal(first_of(dev), 2 * first_of(ModelConfig(path=str(tiny.path()), dtype="float32")))
    assert torch.equal(first_of(dev), first_of(dev.model_copy(update={"revision": COMMITS["dev"]})))
    assert not torch.equal(first_of(dev), first_of(dev.model_copy(update={"revision": "main"})))
    assert dev.build().name == "lab/tiny"
    assert read_model_config(dev.source(weights=False)).vocab_size == 128


@pytest.mark.usefixtures("hub")
def test_a_revision_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match="lab/tiny at revision v2 is neither a directory here nor a model the hub"):
        ModelConfig(path="lab/tiny", revision="v2").build()
