"""A resume tells what has changed since the run was begun: settings, data, code, another run's checkpoints."""

import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import oncurve
from fakes.project import ROWS, Command
from fakes.tables import table
from oncurve.config import RUN, load_config
from oncurve.run.directory.identity import Differences, compare, defaults_of
from oncurve.trainer import FORMAT

pytestmark = pytest.mark.slow

STEPS = 2


@pytest.fixture(scope="module")
def laid_out(laid_out: Path) -> Path:
    """A project with a finished run of two steps in `run`, and another of other data in `other`."""
    (laid_out / "held_out.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        for out, seed in (("run", 0), ("other", 1)):
            with oncurve.train(
                "recipe.toml",
                reward={"path": "reward.py:length", "processes": 1},
                out=out,
                steps=STEPS,
                seed=seed,
                settings={"data": {"eval_path": "held_out.jsonl"}, "checkpoint": {"every": 1}},
            ):
                pass
    return laid_out


@pytest.fixture
def site(laid_out: Path) -> Path:
    """The project, with `run` as it was after the first of its steps. Its paths are absolute, so it is taken back."""
    kept = laid_out.parent / "kept"
    if not kept.exists():
        shutil.copytree(laid_out, kept)
    shutil.rmtree(laid_out)
    shutil.copytree(kept, laid_out)
    shutil.rmtree(laid_out / "run/checkpoints/step-000002")
    shutil.rmtree(laid_out / "run/model")
    return laid_out


def edit(path: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new, 1))

    return change


def foreign_checkpoint() -> None:
    shutil.rmtree("run/checkpoints")
    shutil.copytree("other/checkpoints", "run/checkpoints")


CONFIG = "run/config.toml"
REFUSED: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "group size": (edit(CONFIG, "group_size = 4", "group_size = 8"), ("rollout.group_size: was 4, is 8",)),
    "seed": (edit(CONFIG, "seed = 0", "seed = 5"), ("run.seed: was 0, is 5",)),
    "a reward's weight": (edit(CONFIG, "weight = 1.0", "weight = 2.0"), ("rewards.0.weight: was 1.0, is 2.0",)),
    "data": (edit("data.jsonl", "w4", "w5"), ("data.path: ", "data.jsonl: was ", " bytes (sha256 ")),
    "held-out data": (edit("held_out.jsonl", "w4", "w5"), ("data.eval_path: ", "held_out.jsonl: was ")),
    "tokenizer": (edit("model/tokenizer.json", "w9", "w9x"), ("model.path: ", "tokenizer.json: was ")),
    "checkpoint": (foreign_checkpoint, ("checkpoints/step-000001 is a checkpoint of another run",)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_change_that_decides_the_numbers_is_refused_by_name(
    command: Command, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = REFUSED[what]
    change()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    monkeypatch.setattr(
        "oncurve.models.loading.weights.ModelConfig.build", lambda *_: pytest.fail("the model was loaded")
    )
    said = command("resume", "run")
    assert said.code == 2
    assert "Traceback" not in said.err
    for word in (*words, "cannot be resumed exactly", "oncurve resume run --changed"):
        assert word in said.err
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("what", ["group size", "data", "checkpoint"])
def test_a_change_is_taken_when_it_is_asked_for_said_noted_and_not_refused_again(command: Command, what: str) -> None:
    change, words = REFUSED[what]
    change()
    if what == "checkpoint":
        shutil.rmtree("run/checkpoints/step-000002")
    said = command("resume", "run", "--changed").fine()
    assert "not exact: the run goes on" in said.out
    assert words[0] in said.out
    (note,) = json.loads(Path("run/environment.json").read_text())["changed"]
    assert note["after_step"] == 1
    assert any(words[0] in line for line in note["what"])
    edit(CONFIG, f"steps = {STEPS}", "steps = 3")()
    if what != "checkpoint":  # a strange checkpoint stays one
        assert command("resume", "run").code == 0
        assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 3


def test_what_does_not_decide_the_numbers_may_change_without_a_word(command: Command) -> None:
    for name, old, new in (("steps", STEPS, 3), ("keep", 2, 5), ("grace_seconds", 30.0, 1.0)):
        edit(CONFIG, f"{name} = {old}", f"{name} = {new}")()
    edit(CONFIG, "timeout_seconds = 10.0", "timeout_seconds = 30.0")()
    said = command("resume", "run").fine()
    assert "not exact" not in said.out
    assert "changed" not in json.loads(Path("run/environment.json").read_text())


def age(take: Callable[[str, Any], bool]) -> list[str]:
    """The run in `run` as a version wrote it that did not have the keys which `take` chooses by key and value."""
    identity = json.loads(Path("run/run.json").read_text())
    taken = [key for key, value in identity["settings"].items() if take(key, value)]
    tables = tomllib.loads(Path(CONFIG).read_text())
    for key in taken:
        del identity["settings"][key]
        section, _, name = key.partition(".")
        tables[section].pop(name, None)
    Path("run/run.json").write_text(json.dumps(identity))
    Path(CONFIG).write_text(tomli_w.dumps(tables))
    return taken


def test_keys_that_are_younger_than_the_run_have_their_defaults_and_the_resume_is_exact(command: Command) -> None:
    """All of them at once: every key that has its default, and so whole sections too."""
    defaults = defaults_of(load_config(Path(CONFIG))[0], RUN)
    taken = age(lambda key, value: not key.startswith("rewards.") and value == defaults[key])
    assert {"cluster.kind", "learner.moments", "kl.estimator", "correction.kind"} <= set(taken)
    said = command("resume", "run").fine()
    assert "not exact" not in said.out
    assert "changed" not in json.loads(Path("run/environment.json").read_text())


def test_a_younger_key_with_another_value_than_its_default_is_refused(command: Command) -> None:
    age(lambda key, value: key == "kl.estimator")
    edit(CONFIG, "[kl]\n", '[kl]\nestimator = "k2"\n')()
    assert 'kl.estimator: was not set, is "k2"' in command("resume", "run").err


def test_a_key_that_was_not_set_and_has_a_default_since_is_refused(command: Command) -> None:
    """None is in no TOML, so the settings themselves cannot tell."""
    identity = json.loads(Path("run/run.json").read_text())
    assert identity["settings"]["rollout.max_new_tokens"] == 6
    identity["settings"]["kl.estimator"] = None
    Path("run/run.json").write_text(json.dumps(identity))
    edit(CONFIG, 'estimator = "k3"\n', "")()
    assert 'kl.estimator: was not set, is "k3"' in command("resume", "run").err


def test_a_younger_key_of_a_table_within_a_table_has_its_default() -> None:
    before = {"settings": {"advantage.base": {"kind": "group", "scale": "none"}}, "files": {}}
    inner = {"kind": "group", "scale": "none", "young": 3, "nothing": None}
    now = {"settings": {"advantage.base": inner}, "files": {}}
    default = {"advantage.base": {"kind": "group", "scale": "std", "young": 3, "nothing": None}}
    assert compare(before, now, (), default) == Differences()
    inner["young"] = 4
    assert len(compare(before, now, (), default).refused) == 1


def test_a_reward_that_was_mended_is_said_and_the_run_goes_on(command: Command) -> None:
    edit("reward.py", "% 7", "% 5")()
    said = command("resume", "run").fine()
    assert "not exact: the run goes on" in said.out
    assert "reward.py: was " in said.out


def test_a_schedule_that_ends_with_the_run_makes_more_steps_inexact(command: Command) -> None:
    recipe = ["recipe.toml", "learner.schedule=linear", "--out", "decays"]
    assert command("train", *recipe).code == 0
    edit("decays/config.toml", "steps = 3", "steps = 4")()
    said = command("resume", "decays")
    assert (said.code, "run.steps: was 3, is 4" in said.out) == (0, True)


DAMAGES = table("changed_runs", "damages")


def test_a_missing_or_damaged_identity_is_taken_from_the_checkpoint(command: Command) -> None:
    edit(CONFIG, "group_size = 4", "group_size = 8")()
    Path("run/run.json").unlink()
    assert "rollout.group_size: was 4, is 8" in command("resume", "run").err
    for damage, content in DAMAGES.items():
        Path("run/run.json").write_text(content)
        assert "rollout.group_size: was 4, is 8" in command("resume", "run").err, damage
    edit(CONFIG, "group_size = 8", "group_size = 4")()
    said = command("resume", "run")
    assert (said.code, "run.json is missing or damaged" in said.out) == (0, True)
    assert json.loads(Path("run/run.json").read_text())["id"]


def test_an_older_format_is_refused_in_one_line(command: Command) -> None:
    path = Path("run/checkpoints/step-000001/state.json")
    now, manifest = path.read_bytes(), path.with_name("manifest.json")
    path.write_bytes(now.replace(b'"format": %d' % FORMAT, b'"format": %d' % (FORMAT - 1)))
    digests = [hashlib.sha256(each).hexdigest() for each in (now, path.read_bytes())]
    manifest.write_text(manifest.read_text().replace(*digests))
    said = command("resume", "run")
    assert said.code == 1
    assert said.err == (
        f"oncurve: the checkpoints in run have format {FORMAT - 1}, and this oncurve reads format {FORMAT} alone: "
        "resume the run with the version that wrote it\n"
    )


def test_a_damaged_checkpoint_says_nothing_of_the_run_it_is_of(command: Command) -> None:
    for step, damage in enumerate((b'{"run": 5}', b'{"format": 1}', b"[]", b"\xff"), 6):
        shutil.copytree("run/checkpoints/step-000001", f"run/checkpoints/step-{step:06d}")
        Path(f"run/checkpoints/step-{step:06d}/state.json").write_bytes(damage)
    said = command("resume", "run").fine()
    assert all(f"step-{step:06d} is damaged and was passed over" in said.out for step in range(6, 10))


def test_rows_that_were_given_in_memory_are_compared_by_what_was_kept_of_them(project: Path) -> None:
    settings: dict[str, Any] = {"rollout": {"group_size": 4, "max_new_tokens": 5}, "data": {"prompts_per_step": 2}}
    given: dict[str, Any] = {"model": "model", "data": ROWS, "reward": {"kind": "regex", "pattern": "w1"}}
    with oncurve.train(**given, steps=1, settings=settings, out="rows") as run:
        assert run.directory == Path("rows")
    edit("rows/config.toml", "steps = 1", "steps = 2")()
    edit("rows/data.jsonl", "w4", "w5")()
    with pytest.raises(oncurve.base.errors.RunDirectoryError, match=r"data\.path: .*data\.jsonl: was"):
        oncurve.resume("rows")
    with oncurve.resume("rows", changed=True) as again:
        assert len(again.metrics) == 2


@pytest.mark.parametrize("harm", ["environment.json", "metrics.jsonl", "metrics.jsonl gone", "metrics.jsonl short"])
def test_a_damaged_record_costs_itself_and_never_the_model(command: Command, harm: str) -> None:
    path = Path("run") / harm.partition(" ")[0]
    if harm.endswith("gone"):
        path.unlink()
    else:
        path.write_bytes(
            b"\xff{" if harm.endswith(".json") else b'{"step": 1}\n[[[\n' + b"x" * (0 if "short" in harm else 9000)
        )
    said = command("resume", "run").fine()
    assert Path("run/model/model.safetensors").is_file()
    assert Path("run/report.html").is_file()
    assert "Traceback" not in said.err
