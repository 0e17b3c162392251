"""What a message asks the reader to run can be pasted into a shell as it stands."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import oncurve
from fakes.messages import message_of
from fakes.sources import tree_of
from oncurve.base.errors import ConfigError, command
from oncurve.config.layers import from_overrides
from oncurve.config.loading import load_config
from oncurve.config.sections import SECTIONS
from oncurve.demo.show import what_next
from oncurve.rewards import REWARD_KINDS
from oncurve.run.commands.evaluation import evaluate_target

SOURCE = Path(oncurve.__file__).parent
KEYS = {
    f"{name}.{key}" for name, section in SECTIONS.items() for cls in section.kinds.values() for key in cls.model_fields
}
KEYS |= {f"rewards.0.{key}" for cls in REWARD_KINDS.values() for key in cls.model_fields} | {"rewards"}
WORD = re.compile(r"(?<![\w.'\"])((?:\w+\.)?(?:\d\.)?\w+)(=\S+)")
MAY_SUGGEST = re.compile(r"\w\.\w+=|rewards=|oncurve (?:train|resume|eval|plan|view|reward-model)")
PLACEHOLDER = "7"  # what an f-string fills in, which is a number or quoted by `command`


@cache
def trees() -> tuple[tuple[Path, ast.AST], ...]:
    texts = [(file, file.read_text(encoding="utf-8")) for file in sorted(SOURCE.rglob("*.py"))]
    return tuple((file, tree_of(text)) for file, text in texts if MAY_SUGGEST.search(text))


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts of a module that can be shown: all but docstrings, f-strings with what they fill in."""
    hidden = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
            hidden |= {id(part) for part in node.args}  # quoted
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values]
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value


def shown() -> list[tuple[str, str]]:
    return [
        (f"{file.relative_to(SOURCE)}:{line}", text)
        for file, tree in trees()
        for line, text in strings(tree)
        if "=" in text
    ]


def suggested() -> list[tuple[str, str]]:
    """`section.key=value` words in messages, with where they stand."""
    found = [(place, key, rest.rstrip(";,.:)`")) for place, text in shown() for key, rest in WORD.findall(text)]
    return [(place, key + rest) for place, key, rest in found if key in KEYS]


def test_settings_in_messages_reach_the_command_as_they_are_meant() -> None:
    words = suggested()
    assert len(words) > 10
    script = "; ".join(f"printf '%s\\0' {word}" for _, word in words)
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    assert len(said) == len(words)  # none is several words to a shell
    for (place, word), given in zip(words, said, strict=True):
        layer, _ = from_overrides([given], Path("/"))
        assert layer.assignments, place
        assert not set(given) & set("[]{}()<>|&;$`\\*? …"), f"{place}: {word} is read otherwise by a shell"
        value = given.partition("=")[2]
        assert value.strip(". "), f"{place}: {word} sets nothing"


def test_no_message_puts_a_path_behind_a_command_without_quoting_it() -> None:
    bare = re.compile(r"oncurve (?:train|resume|eval|plan|view|reward-model \w+) ?$")
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                for part, after in zip(node.values, node.values[1:], strict=False):
                    says = part.value if isinstance(part, ast.Constant) else ""
                    assert not (bare.search(str(says)) and isinstance(after, ast.FormattedValue)), (file, node.lineno)


@pytest.mark.parametrize("name", ["my model", "a'b", "(1)", "$HOME", "a;b", "é", "[x]"])
def test_a_command_reaches_the_shell_word_for_word(name: str) -> None:
    words = ["eval", name, "rewards=[{kind='math'}]", 'data.template={question} "$"']
    said = subprocess.run(
        ["sh", "-c", command(*words).replace("oncurve", "printf '%s\\0'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split("\0")[:-1] == words
    suggestions = re.findall(r"oncurve eval .*?(?=, or by options: |$)", message_of(ConfigError, evaluate_target, name))
    assert [shlex.split(suggestion)[2] for suggestion in suggestions] == [name, name]


@pytest.mark.parametrize("line", [line for line, _ in what_next(Path("my runs/demo"))])
def test_what_the_demo_suggests_is_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    name = " ".join(words[:2]) if words[0] == "config" else words[0]
    assert name in {"eval", "demo", "train", "config show", "config explain"}
    if name != "demo":
        recipe, *rest = words[len(name.split()) :]
        overrides = [word for word in rest if "=" in word]
        assert recipe == "my runs/demo" if name == "eval" else load_config(recipe, overrides)


@pytest.mark.parametrize("how", ["-m", "by its path", "by its name"])
def test_a_suggested_command_starts_the_program_as_it_was_started(how: str, tmp_path: Path) -> None:
    script = tmp_path / "an environment" / "oncurve"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom oncurve.cli import main\nmain()\n")
    script.chmod(0o755)
    path = f"{script.parent}:/usr/bin:/bin" if how == "by its name" else "/usr/bin:/bin"
    words = {"-m": [sys.executable, "-m", "oncurve"], "by its path": [str(script)], "by its name": ["oncurve"]}[how]
    environment = {**os.environ, "PATH": path, "COLUMNS": "1000"}
    begun = ["sh", "-c", shlex.join([*words, "init", "task"])]
    said = subprocess.run(begun, capture_output=True, text=True, env=environment, cwd=tmp_path)
    suggested = said.stdout.partition("edit it, then: ")[2].partition(" train task.toml")[0]
    assert suggested == shlex.join(words), said.stderr
    assert subprocess.run(["sh", "-c", f"{suggested} --version"], env=environment).returncode == 0
