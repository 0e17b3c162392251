"""`oncurve export`: any checkpoint as a model that transformers and PEFT load, at any time, over nothing."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import oncurve
from fakes.killed_runs import killed_at
from fakes.project import Command
from fakes.tables import table
from oncurve.run import export_run
from oncurve.trainer import StepResult

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of PEFT
LORA = {"lora": {"rank": 2}, "model": {"dtype": "float32"}}  # in bfloat16 what is merged is rounded
EVERY = {"checkpoint": {"every": 1, "keep": 5}}


@pytest.fixture(scope="module")
def site(laid_out: Path) -> Path:
    """A run of two steps in `run`, which was exported after its first while it went on; one with an adapter."""

    def midway(result: StepResult) -> None:
        if result.step == 1:
            export_run(Path("run"), out=Path("midway"))

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        oncurve.train("recipe.toml", out="run", steps=2, settings=EVERY, on_step=midway).close()
        oncurve.train("recipe.toml", out="lora", steps=1, settings=LORA).close()
    return laid_out


def same(one: str, two: str, file: str = "model.safetensors") -> bool:
    return Path(one, file).read_bytes() == Path(two, file).read_bytes()


@pytest.mark.slow
def test_the_newest_checkpoint_is_the_model_of_the_run(command: Command) -> None:
    said = command("export", "run")
    assert (said.code, said.out) == (0, "run/export/step-000002   the policy after step 2: Hugging Face form\n")
    assert same("run/export/step-000002", "run/model")
    assert AutoTokenizer.from_pretrained("run/export/step-000002")("w3 w4").input_ids


def test_a_run_whose_reward_was_an_object_is_exported(command: Command) -> None:
    def reward(completion: str) -> float:
        return len(completion) / 10

    oncurve.train("recipe.toml", reward=reward, out="lost", steps=1).close()
    assert command("export", "lost").code == 0
    assert same("lost/export/step-000001", "lost/model")


def test_a_step_of_a_run_that_goes_on_is_that_step_and_loads(command: Command) -> None:
    assert command("export", "run", "--step", "1", "--out", "first").code == 0
    assert same("first", "midway")
    assert not same("first", "run/model")
    model = AutoModelForCausalLM.from_pretrained("first")
    assert model(torch.tensor([[3, 4]])).logits.isfinite().all()


def test_an_adapter_is_merged_or_alone(command: Command) -> None:
    assert command("export", "lora").code == command("export", "lora", "--adapter").code == 0
    merged, alone = "lora/export/step-000001", "lora/export/step-000001-adapter"
    assert same(merged, "lora/model")
    assert same(alone, "lora/model/adapter", "adapter_model.safetensors")
    assert not Path(alone, "model.safetensors").exists()
    ids = torch.tensor([[3, 4, 5]])
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("model"), alone)
    torch.testing.assert_close(model(ids).logits, AutoModelForCausalLM.from_pretrained(merged)(ids).logits)


REFUSED = table("export", "refused")


def test_what_cannot_be_exported_is_a_sentence_and_leaves_nothing(command: Command) -> None:
    before = sorted(Path().rglob("*"))
    for words, message in REFUSED.items():
        said = command("export", *words.split())
        assert (said.code, message in said.err, "Traceback" in said.err) == (2, True, False), (words, said.err)
    assert sorted(Path().rglob("*")) == before


def test_a_damaged_checkpoint_is_passed_over_or_named(command: Command) -> None:
    shutil.copytree("run", "harmed", ignore=shutil.ignore_patterns("export"))
    weights = Path("harmed/checkpoints/step-000002/learner.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert command("export", "harmed", "--step", "2").err.startswith(
        "oncurve: harmed/checkpoints/step-000002 is damaged"
    )
    assert command("export", "harmed").code == 0
    assert os.listdir("harmed/export") == ["step-000001"]
    assert same("harmed/export/step-000001", "midway")


def test_an_export_writes_through_no_link(command: Command, tmp_path: Path) -> None:
    shutil.copytree("run", tmp_path / "run", ignore=shutil.ignore_patterns("export"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "run/export").symlink_to(tmp_path / "mine")
    said = command("export", str(tmp_path / "run"))
    assert said.code == 2
    assert "is a symbolic link" in said.err
    assert not any((tmp_path / "mine").iterdir())


@pytest.mark.slow
def test_what_a_killed_export_left_goes_with_the_next_and_nothing_else(project: Path, command: Command) -> None:
    """In a folder of the user's with what belongs to the same target alone."""
    names = Path("left"), Path("run/export")
    for words in (["--out", "left/best"], []):
        killed_at(("oncurve.models.loading.saving", "", "_with_dtype", 1), "export", "run", "--step", "1", *words)
    living, other = f".tmp-best-{os.getpid()}-0123abcd", f".tmp-model-{2**22 + 1}-0123abcd"
    for folder in names:
        assert any(entry.name.startswith(".tmp-") for entry in folder.iterdir())
        (folder / living).mkdir()
        (folder / other).mkdir()
    assert command("export", "run", "--step", "1", "--out", "left/best").code == 0
    assert command("export", "run", "--step", "1").code == 0
    assert {entry.name for entry in names[0].iterdir()} == {"best", living, other}
    assert {entry.name for entry in names[1].iterdir() if entry.name.startswith(".")} == {living}
