"""`oncurve reward-model train`: what it leaves and what it refuses; no interruption changes a bit of the model."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from fakes.classifiers import lay_down
from fakes.killed_runs import killed_at
from fakes.project import Command, refused
from fakes.reward_examples import DATA, UPDATES, write_examples
from fakes.tables import table
from fakes.tolerance import about
from oncurve import durable
from oncurve.metrics import METRICS
from oncurve.models.classifiers.load import load_classifier
from oncurve.reward_models.learner import RewardLearner
from oncurve.run.commands.reward_models import load_reward_recipe, train_reward_model

kinds = pytest.mark.parametrize("kind", DATA)


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, with a run of each kind that nothing interrupts: `whole-outcome` and `whole-process`."""
    folder = write_examples(tmp_path_factory.mktemp("project"))
    for kind in DATA:
        train_reward_model(*load_reward_recipe(folder / f"{kind}.toml"), folder / f"whole-{kind}")
    return folder


@pytest.fixture
def site(laid_out: Path) -> Path:
    return laid_out


def lines_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def checkpoints(out: Path) -> list[int]:
    return [number for number, _ in durable.numbered(out / "checkpoints")]


def equals_whole(out: Path, kind: str, whole: Path | None = None) -> bool:
    """Whether a run has left the model, the log and the last checkpoint of the uninterrupted one, byte for byte."""
    whole = whole or Path(f"whole-{kind}")
    last = f"checkpoints/{(durable.newest_valid(whole / 'checkpoints').path or whole).name}/reward_model.safetensors"
    names = ["model/model.safetensors", "model/config.json", "metrics.jsonl", last]
    return all((out / name).read_bytes() == (whole / name).read_bytes() for name in names)


@kinds
def test_it_leaves_a_complete_folder(laid_out: Path, kind: str) -> None:
    out = laid_out / f"whole-{kind}"
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    assert names == {"checkpoints", "config.toml", "environment.json", "metrics.jsonl", "model", "run.json"}
    assert durable.verify(out / "model") == []
    assert checkpoints(out) == [UPDATES - 2, UPDATES]
    lines = lines_of(out)
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    assert [line["step"] for line in lines if "reward_model/heldout_loss" in line] == [4, 8]
    assert all(name in METRICS for line in lines for name in line if name != "step")
    assert all(line["reward_model/updates"] == 1 for line in lines)
    assert lines[-1]["reward_model/loss"] < lines[0]["reward_model/loss"]
    assert "`oncurve reward-model train` takes this file" in (out / "config.toml").read_text().splitlines()[0]


@kinds
def test_the_model_loads_in_transformers_as_it_is(laid_out: Path, kind: str) -> None:
    folder = laid_out / f"whole-{kind}" / "model"
    loader = AutoModelForSequenceClassification if kind == "outcome" else AutoModelForTokenClassification
    module, loading = loader.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert module.config.num_labels == (1 if kind == "outcome" else 2)
    ids = [*AutoTokenizer.from_pretrained(folder)("2+2\n4")["input_ids"], module.config.eos_token_id]
    with torch.no_grad():
        logits = module.eval()(input_ids=torch.tensor([ids])).logits[0]
    classifier = load_classifier(str(folder), kind, device="cpu")
    (said,) = classifier.score([classifier.encode("2+2\n", "4", (1,) if kind == "process" else ())])
    wanted = logits if kind == "outcome" else logits[-2].softmax(0)[1:]
    assert said == about(wanted.tolist())
    assert said not in ([0.0], [0.5])


def test_what_it_says_on_the_way(command: Command) -> None:
    said = command("reward-model", "train", "process.toml", "--out", "told")
    assert (said.code, said.err) == (0, "")
    assert [words for words in table("reward_model_training", "told") if words not in said.out] == []
    assert equals_whole(Path("told"), "process")
    again = command("resume", "told")
    assert (again.code, "told is finished: all 8 updates are done" in again.out) == (0, True)
    assert equals_whole(Path("told"), "process")


def test_its_own_configuration_is_a_recipe(command: Command) -> None:
    command("reward-model", "train", "whole-outcome", "--out", "again").fine()
    assert equals_whole(Path("again"), "outcome")


SETTINGS = table("reward_model_training", "settings")


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_cannot_be_is_refused_in_one_message_and_leaves_no_folder(command: Command, setting: str) -> None:
    good = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
    Path("wrong.jsonl").write_text(good + "\n" + json.dumps({"prompt": "a", "chosen": "b", "rejected": 5}) + "\n")
    message = {"role": "user", "content": "a"}
    Path("chat.jsonl").write_text(json.dumps({"prompt": [message], "chosen": "b", "rejected": "c"}) + "\n")
    Path("bare").mkdir(exist_ok=True)
    if setting == "reward_model.path=steps":
        lay_down(Path("steps"), "process")
    refused(command("reward-model", "train", "outcome.toml", setting, "--out", "out"), *SETTINGS[setting])


def test_recipes_and_folders_that_are_not_there_are_refused(command: Command) -> None:
    refused(command("reward-model", "train", "outcom.toml", "--out", "out"), "there is no file", "'outcome.toml'?")
    refused(command("reward-model", "train", "grpo", "--out", "out"), "objective: unknown section")
    refused(command("resume", "bare-run"), "bare-run is not a folder")


def test_a_folder_that_holds_anything_is_never_written_into(command: Command) -> None:
    before = {path: path.read_bytes() for path in Path("whole-outcome").rglob("*") if path.is_file()}
    said = command("reward-model", "train", "outcome.toml", "--out", "whole-outcome")
    refused(said, "whole-outcome exists and is not empty", "Continue it (oncurve resume whole-outcome)")
    Path("notes").mkdir()
    Path("notes/mine.txt").write_text("mine")
    refused(command("reward-model", "train", "outcome.toml", "--out", "notes"), "It is not a run of oncurve")
    assert before == {path: path.read_bytes() for path in Path("whole-outcome").rglob("*") if path.is_file()}


@pytest.mark.parametrize(("kind", "update"), [("outcome", 1), ("process", 5), ("outcome", UPDATES)])
def test_a_signal_ends_it_after_its_update_and_it_goes_on_exactly(
    command: Command, monkeypatch: pytest.MonkeyPatch, kind: str, update: int
) -> None:
    out, plain, calls = Path(f"stopped-{kind}-{update}"), RewardLearner.update, [0]

    def stopping(self: RewardLearner, examples: object) -> object:
        calls[0] += 1
        if calls[0] == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, examples)

    with monkeypatch.context() as patch:
        patch.setattr(RewardLearner, "update", stopping)
        said = command("reward-model", "train", f"{kind}.toml", "--out", str(out))
    assert said.code == 128 + signal.SIGTERM
    assert f"stopped by SIGTERM; to continue after update {update}: oncurve resume {out}" in said.out
    assert checkpoints(out)[-1] == update
    assert not (out / "model").exists()
    again = command("resume", str(out))
    assert (again.code, f"{update} of {UPDATES} updates are done" in again.out) == (0, True)
    assert "not exact" not in again.out
    assert equals_whole(out, kind)


KILLS = [tuple(place) for place in table("reward_model_training", "kills")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "kind"),
    list(zip(KILLS, [*DATA, *reversed(DATA), *DATA], strict=True)),
    ids=lambda given: given if given in DATA else f"{given[2]}-{given[3]}",
)
def test_it_may_be_killed_anywhere(command: Command, kind: str, place: tuple[str, str, str, int]) -> None:
    out = Path(f"killed-{kind}-{place[2]}-{place[3]}")
    killed_at(place, "reward-model", "train", f"{kind}.toml", "--out", str(out))
    command("resume", str(out)).fine()
    assert equals_whole(out, kind)
