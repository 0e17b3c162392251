"""The model card of a run, and its upload: the hub's own library reads the one and does the other."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load

from fakes.model_hub import model_hub
from fakes.project import Said

Command = Callable[..., Said]
TRAINED = ("train", "recipe.toml", "data.eval_fraction=0.34", "eval.every=1", "--out", "runs/mine")


def test_the_card_says_what_trained_the_policy_and_no_path_of_this_machine(command: Command, project: Path) -> None:
    assert command(*TRAINED).code == 0
    card = ModelCard.load(Path("runs/mine/model/README.md"))
    assert metadata_load(Path("runs/mine/model/README.md"))["library_name"] == "transformers"
    assert card.data.tags == ["oncurve", "reinforcement-learning", "grpo"]
    text = card.text
    assert str(project) not in text
    for words in ("# mine", "J(θ) = ", "kind = regex", "| `rollout.group_size` | `4` |", "eprint = {2402.03300}"):
        assert words in text
    assert "| 0 | " in text
    assert "| 3 | " in text  # the steps of the first and the last evaluation, with an interval
    assert "(95 % interval)" in text
    assert "`data.path`: `data.jsonl`" in text
    assert "sha256 `" in text


def test_an_export_is_pushed_to_the_hub_when_asked_alone(command: Command) -> None:
    assert command(*TRAINED).code == 0
    written = Path("runs/mine/export/step-000003")
    for hub_is in ("there", "denying", "gone"):
        shutil.rmtree(written, ignore_errors=True)
        with model_hub() as hub:
            hub.denies = hub_is == "denying"
            url = hub.url if hub_is != "gone" else "http://127.0.0.1:9"
            environment = {"HF_ENDPOINT": url, "HF_TOKEN": "hf_a", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
            words = [sys.executable, "-m", "oncurve", "export", "runs/mine", "--push", "me/policy"]
            said = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True)
        assert "Traceback" not in said.stderr
        if hub_is != "there":
            assert said.returncode == 1
            assert f"{written} is written, and the hub did not take it" in said.stderr
            assert (hub.files, hub.made) == ({}, [])
        else:
            assert (said.returncode, said.stdout.splitlines()[-1]) == (0, f"{hub.url}/me/policy"), said.stderr
            assert "private" in (hub.made[0].get("visibility"), *hub.made[0])
            assert hub.files["README.md"] == (written / "README.md").read_bytes()
            assert hub.files["model.safetensors"] == (written / "model.safetensors").read_bytes()
            assert {"config.json", "tokenizer.json"} <= set(hub.files)


def test_a_name_that_the_hub_cannot_have_is_refused_before_anything_is_written(command: Command) -> None:
    said = command("export", "runs/mine", "--push", "bad name/x/y")
    assert (said.code, said.err.startswith("oncurve: --push: ")) == (2, True)
