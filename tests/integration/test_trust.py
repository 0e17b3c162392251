"""A folder from elsewhere: commands that look import nothing of it, others name what it brings and want to be told."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncurve
from fakes.chat_server import ChatServer
from fakes.project import Command
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config import MADE_HERE, load_config, unsigned

CODE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
from oncurve.advantages import GroupAdvantage
from oncurve.kl import KL_KINDS
from oncurve.rewards import Python
from oncurve.data import Files
class Own(GroupAdvantage): pass
class Reward(Python): pass
class Rows(Files): pass
chi = KL_KINDS["k3"]
def reward(completion): return float(len(completion))
"""

KINDS = table("trust", "kinds")


@pytest.fixture(scope="module")
def laid_out(laid_out: Path) -> Path:
    """A project with a run in `run`, whose reward is in `own.py`."""
    (laid_out / "own.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(laid_out)
        oncurve.train("recipe.toml", out="run", steps=1, reward="own.py:reward").close()
    return laid_out


def is_own(folder: Path) -> bool:
    return not unsigned(folder, [MADE_HERE])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user's home: no folder here was made with its key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))


@pytest.fixture
def not_imported(command: Command) -> Iterator[None]:
    """The project's code is imported by nothing in this test."""
    Path("imported").unlink(missing_ok=True)
    yield
    assert not Path("imported").exists()


@pytest.mark.usefixtures("elsewhere", "not_imported")
@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_look_import_nothing(command: Command, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path("run/config.toml").write_text('extends = "../recipe.toml"\n' + KINDS[kind].replace("own.py", "../own.py"))
    for words in (("config", "show"), ("config", "explain"), ("runs",)):
        said = command(*words, "run").fine()
        assert words == ("runs",) or "own.py:" in said.out or "own:" in said.out or "not imported" in said.err
        assert kind != "an advantage" or "std r" not in said.out  # the formula of the built-in that stands in for it
        assert kind != "a reward" or words[1:] != ("explain",) or "0.25 own" in said.out  # nor its weight
    assert command("doctor", "run").code in (0, 1, 2)
    said = command("export", "run", "--out", "exported").fine()


@pytest.mark.usefixtures("elsewhere", "not_imported")
@pytest.mark.parametrize(
    "words", ["resume run", "eval run", "data check run", "reward check run", "train run/config.toml"]
)
def test_commands_that_run_name_what_the_folder_brings_first(command: Command, words: str) -> None:
    judged = 'kind = "model_judge"\nurl = "http://host:1/v1"\nmodel = "m"\ntemplate = "{{ completion }}"\nfield = "s"\n'
    recipe = 'extends = "../recipe.toml"\n[model]\ntrust_remote_code = true\n[[rewards]]\nkind = "python"\n'
    recipe += f'path = "../own.py:reward"\n[[rewards]]\n{judged}api_key_env = "HF_TOKEN"\n'
    Path("run/config.toml").write_text(recipe)
    said = command(*words.split())
    assert said.code == 2, said
    for named in ("own.py:reward", "http://host:1/v1", "HF_TOKEN", "model.trust_remote_code = true", "--trust"):
        assert named in said.err
    with pytest.raises(ConfigError, match=r"trust=True"):
        oncurve.resume("run")


@pytest.mark.slow
def test_a_copy_of_a_folder_of_ones_own_is_known_and_a_changed_one_is_not(command: Command) -> None:
    shutil.copytree("run", "copy")
    assert is_own(Path("copy"))
    assert command("resume", "copy", "run.steps=2").code == 0
    assert is_own(Path("copy"))
    settings = Path("run/config.toml").read_text()
    Path("run/config.toml").write_text(settings.replace("learning_rate = 0.001", "learning_rate = 0.002"))
    assert "learner.learning_rate" in command("resume", "run", "run.steps=2").err  # edited by hand, as one's own
    Path("run/config.toml").write_text(settings.replace("own.py:reward", "other.py:reward"))
    assert "other.py:reward" in command("resume", "run", "run.steps=2").err


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_a_folder_that_is_trusted_once_is_not_asked_about_again(command: Command) -> None:
    assert command("resume", "run", "run.steps=2").code == 2
    assert command("resume", "run", "run.steps=2", "--trust").code == 0
    assert command("resume", "run", "run.steps=3").code == 0
    oncurve.resume("run", settings={"run": {"steps": 4}}).close()


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc/none", "relative"])
def test_without_a_place_for_a_key_runs_begin_and_restart_and_the_reason_is_said(
    command: Command, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    again = ("train", "recipe.toml", "--reward", "own.py:reward", "--out", "new", "--resume-if-there")
    assert command(*again).code == 0
    assert command(*again, "run.steps=3").code == 0
    assert json.loads(Path("new/run.json").read_bytes())["signatures"] == []
    assert "no key of this user can be kept" in command("resume", "new").err


def test_the_key_is_the_users_alone(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "fresh"))
    assert not is_own(Path("run"))  # and makes the key
    key = tmp_path / "fresh/oncurve/key"
    assert (key.stat().st_mode & 0o777, len(key.read_bytes()), os.listdir(key.parent)) == (0o600, 32, ["key"])
    key.chmod(0o644)
    assert "is not this user's alone" in command("resume", "run").err


def test_a_recipe_of_ones_own_is_named_in_one_line_and_not_asked_about(command: Command) -> None:
    Path("own.toml").write_text(
        'extends = "recipe.toml"\n[[rewards]]\nkind = "python"\npath = "own.py:reward"\nprocesses = 1\n'
    )
    said = command("data", "check", "own.toml").fine()
    (line,) = [line for line in said.err.splitlines() if " brings " in line]
    assert line.endswith("own.py:reward (rewards.0.path)")
    assert load_config("own.toml")[0].rewards


@pytest.mark.usefixtures("elsewhere")
def test_no_address_of_a_folder_is_asked_before_it_is_trusted(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-1")
    with ChatServer() as server:
        form = 'kind = "model_judge"\nmodel = "m"\ntemplate = "{{ completion }}"\nfield = "score"\n'
        recipe = f'extends = "../recipe.toml"\n[[rewards]]\n{form}url = "{server.url}"\napi_key_env = "SECRET_KEY"\n'
        Path("run/config.toml").write_text(recipe)
        assert command("eval", "run", "--n", "1", "--limit", "1").code == 2
        assert server.asked == []
        assert command("eval", "run", "--n", "1", "--limit", "1", "--trust").code == 0
        assert server.asked[0][1]["Authorization"] == "Bearer sk-1"
