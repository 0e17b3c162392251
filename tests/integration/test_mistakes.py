"""Mistakes on the command line, one line each: a message with place and fix, exit code 2, no traceback, nothing left.

Where the mistake can be seen without the model, the model is not loaded. Python's: test_mistakes_in_python.py. What the
rules of the configuration refuse stands in tests/unit.
"""

import json
import os
import resource
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.privileges import without_privileges
from fakes.project import RECIPE, Command, oncurve, refused
from fakes.tables import table
from oncurve.models.loading import hub
from oncurve.run.directory.folder import RunDirectory

EXACT = RECIPE.replace('kind = "regex"\npattern = "w1"\nprocesses = 1', 'kind = "exact"')
NEEDS_THE_MODEL = {*table("mistakes", "needs_the_model"), '{"prompt":[1' + "0" * 30 + "]}"}
"""Mistakes that only the loaded model or its tokenizer shows, or the first file, which is written after that."""


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def not_loaded(request: pytest.FixtureRequest, loads: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which the model's weights were loaded, unless the mistake needs them."""
    monkeypatch.setattr(hub, "reachable", lambda: False)
    yield
    case = getattr(request.node, "callspec", None)
    names = {request.node.name, *(case.params.values() if case is not None else ())}
    assert not loads or names & NEEDS_THE_MODEL, "the model was loaded before the mistake was found"


@pytest.fixture
def unchanged(laid_out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command in a project in which nothing appears, changes or goes."""
    monkeypatch.chdir(laid_out)
    before = files()
    yield lambda *words: oncurve(words, monkeypatch, capfd)
    assert files() == before


SETTINGS = table("mistakes", "settings")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting(unchanged: Command, setting: str) -> None:
    refused(unchanged("train", "recipe.toml", setting, "--out", "out"), SETTINGS[setting])


TYPED = table("mistakes", "typed")
"""Words after `oncurve train recipe.toml`, as a shell or an editor leaves them."""


@pytest.mark.parametrize("words", TYPED)
def test_what_a_shell_or_an_editor_makes_of_words(unchanged: Command, words: str) -> None:
    refused(unchanged("train", "recipe.toml", *shlex.split(words), "--out", "out"), TYPED[words])


COMMANDS = table("mistakes", "commands")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command(unchanged: Command, words: str) -> None:
    refused(unchanged(*shlex.split(words)), COMMANDS[words])


USAGE = ["trian", "resume", "train", "eval model --n 0", "train recipe.toml --zzzqq 1", "config diff"]
USAGE += ["reward-model label recipe.toml --kind stairs --out o"]


@pytest.mark.parametrize("words", USAGE)
def test_what_a_command_does_not_take_shows_its_usage(unchanged: Command, words: str) -> None:
    said = unchanged(*words.split())
    assert (said.code, "Error: " in said.err, "Usage" in said.err, "Traceback" in said.err) == (2, True, True, False)


ROWS = table("mistakes", "rows") | {
    '{"prompt": "w3"}\n' * 40 + '{"promt": "w3"}\n': "line 41: column 'prompt' is missing",
    '{"prompt":[1' + "0" * 30 + "]}": "line 1: the prompt holds the token id",
    '{"prompt":"w3","answer":' + "[" * 400 + "]" * 400 + "}": "line 1: column 'answer' is nested too deeply",
    '{"prompt":"w3","answer":' + "[" * 90_000 + "]" * 90_000 + "}": "nested too deeply",
    '{"prompt":"w3","answer":' + "9" * 6000 + "}": "data.jsonl line 1: ",
}


@pytest.mark.parametrize("content", ROWS, ids=range(len(ROWS)))
def test_a_data_file(command: Command, content: str) -> None:
    Path("data.jsonl").write_text(content)
    refused(command("train", "recipe.toml", "--out", "out"), ROWS[content])


RECIPES = table("mistakes", "recipes") | {
    RECIPE.replace("[[rewards]]", "[rewards]"): "in a file write [[rewards]], with two brackets",
}


@pytest.mark.parametrize("content", RECIPES, ids=range(len(RECIPES)))
def test_a_recipe(command: Command, content: str) -> None:
    Path("recipe.toml").write_text(content)
    refused(command("train", "recipe.toml", "--out", "out"), RECIPES[content])


REWARDS = table("mistakes", "rewards")


@pytest.mark.parametrize("source", REWARDS)
def test_a_reward(command: Command, source: str) -> None:
    Path("reward.py").write_text(source)
    reward = "rewards=[{kind='python', path='reward.py:length', processes=1}]"
    refused(command("train", "recipe.toml", reward, "--out", "out"), "reward ", REWARDS[source])


ESCAPE = "\x1b[2J\x1b]0;title\x07\u202e\x9b1m"
HOSTILE = table("mistakes", "hostile")


def test_what_a_message_quotes_does_not_steer_the_terminal(command: Command) -> None:
    Path("hostile.jsonl").write_text(json.dumps({f"que{ESCAPE}stion": "w3"}) + "\n")
    Path("hostile.py").write_text(f"raise ValueError({ESCAPE!r})\n")
    for where, words in HOSTILE.items():
        said = command(*(word.replace("ESCAPE", ESCAPE) for word in words))
        assert said.code == (0 if where == "a configuration" else 2), (where, said)
        for text in (said.out, said.err):
            assert not set(text) & {"\x1b", "\x07", "\u202e", "\x9b"}, where
            assert "Traceback" not in text or where == "what a file raises"
        assert "2J" in said.out + said.err, where


SHUT = table("mistakes", "shut")


@pytest.mark.parametrize("name", SHUT)
def test_what_a_user_may_not_read_or_write(command: Command, name: str) -> None:
    mode, words = SHUT[name]
    Path("recipe.toml").write_text(EXACT)
    Path("place").mkdir()
    Path("hidden").mkdir()
    shutil.copy("data.jsonl", "hidden")
    data = [f"data.path={name}/data.jsonl"] if name == "hidden" else []
    os.chmod(name, mode)
    try:
        with without_privileges():
            said = command("train", "recipe.toml", *data, "--out", "place/out")
    finally:
        os.chmod(name, 0o755)
    refused(said, words)
    assert not list(Path("place").iterdir())


def test_a_disk_without_room_for_the_first_file(unchanged: Command) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
    try:
        said = unchanged("train", "recipe.toml", "rewards.0={kind='exact'}", "--out", "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused(said, "cannot be written: File too large")


def test_a_directory_that_another_run_holds_is_not_taken(command: Command) -> None:
    with RunDirectory.create(Path("taken"), {}):
        before = files()
        for more in ([], ["--resume-if-there"]):
            refused(command("train", "recipe.toml", "--out", "taken", *more), "taken is in use by another oncurve run")
        assert files() == before
