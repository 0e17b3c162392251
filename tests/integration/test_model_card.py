"""The model card of a run, and its upload: the hub's own library reads the one and does the other."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants
from huggingface_hub.repocard import metadata_load

from fakes.model_hub import model_hub
from fakes.project import Command
from fakes.tables import table

TRAINED = ("train", "recipe.toml", "data.eval_fraction=0.34", "eval.every=1", "--out", "runs/mine")


def test_the_card_says_what_trained_the_policy_and_no_path_of_this_machine(command: Command, project: Path) -> None:
    assert command(*TRAINED).code == 0
    card = ModelCard.load(Path("runs/mine/model/README.md"))
    assert metadata_load(Path("runs/mine/model/README.md"))["library_name"] == "transformers"
    assert card.data.tags == ["oncurve", "reinforcement-learning", "grpo"]
    text = card.text
    assert str(project) not in text
    assert [words for words in table("model_card", "said") if words not in text] == []


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub's own upload
def test_an_export_is_pushed_to_the_hub_when_asked_alone(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_a")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    assert command(*TRAINED).code == 0
    written = Path("runs/mine/export/step-000003")
    for hub_is in ("there", "denying", "gone"):
        shutil.rmtree(written, ignore_errors=True)
        with model_hub() as hub:
            hub.denies = hub_is == "denying"
            monkeypatch.setattr(constants, "ENDPOINT", hub.url if hub_is != "gone" else "http://127.0.0.1:9")
            said = command("export", "runs/mine", "--push", "me/policy")
        if hub_is != "there":
            assert (said.code, "Traceback" in said.err) == (1, False)
            assert f"{written} is written, and the hub did not take it" in said.err
            assert (hub.files, hub.made) == ({}, [])
        else:
            assert (said.code, said.out.splitlines()[-1]) == (0, f"{hub.url}/me/policy"), said.err
            assert "private" in (hub.made[0].get("visibility"), *hub.made[0])
            assert hub.files["README.md"] == (written / "README.md").read_bytes()
            assert hub.files["model.safetensors"] == (written / "model.safetensors").read_bytes()
            assert {"config.json", "tokenizer.json"} <= set(hub.files)


def test_a_name_that_the_hub_cannot_have_is_refused_before_anything_is_written(command: Command) -> None:
    said = command("export", "runs/mine", "--push", "bad name/x/y")
    assert (said.code, said.err.startswith("oncurve: --push: ")) == (2, True)
