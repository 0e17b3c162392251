"""The page "Coming from another tool" has the translators' tables, and hints of errors do not contradict these."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from fakes.scripts import script
from oncurve.base.hints import known_words, word_for
from oncurve.cli import app
from oncurve.compat import DIALECTS
from oncurve.config import RUN
from oncurve.rewards import REWARD_KINDS

ROOT = Path(__file__).parents[2]


def keys(tool: str) -> list[Any]:
    return list(import_module(DIALECTS[tool]).DIALECT.keys)


@pytest.mark.parametrize("tool", DIALECTS)
def test_a_key_stands_once_and_says_why_it_becomes_no_setting(tool: str) -> None:
    names = [key.theirs for key in keys(tool)]
    assert sorted(names) == sorted(set(names))
    assert [key.theirs for key in keys(tool) if key.fate != "translated" and not key.note] == []


@pytest.mark.parametrize("tool", DIALECTS)
def test_a_setting_that_a_note_names_exists(tool: str) -> None:
    table = {key.theirs for key in keys(tool)}
    sections = "|".join(name for name in RUN.names if name not in ("rewards", "rollouts"))
    pattern = re.compile(rf"(?<![\w.])(?:{sections})\.[a-z_]+(?![\w.:])")
    named = {(key.theirs, name) for key in keys(tool) for name in pattern.findall(key.note)}
    wrong = [(key, name) for key, name in named if not RUN.knows(name) and not any(name in other for other in table)]
    assert wrong == []


def test_every_function_of_a_table_is_named_by_a_row() -> None:
    folder = ROOT / "src" / "oncurve" / "compat"
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.toml")]
    named = set(re.findall(r'^make = "(\w+)"', "\n".join(texts), re.MULTILINE))
    modules = [path for path in folder.rglob("*.py") if path.stem in ("functions", "algorithm", "run", "reward")]
    for path in modules:
        code = path.read_text(encoding="utf-8")
        defined = re.findall(r"^def ([a-z]\w*)\(\w+: [^,]+, values: Values", code, re.MULTILINE)
        assert [name for name in defined if name not in named and code.count(f"{name}(") < 2] == [], path.name


@pytest.mark.parametrize("tool", DIALECTS)
def test_every_key_of_a_tool_is_on_the_page(tool: str) -> None:
    text = script("site/coming_from_page").page()
    assert [key.theirs for key in keys(tool) if f"`{key.theirs}`" not in text] == []


@pytest.mark.parametrize("tool", DIALECTS)
def test_what_a_key_becomes_is_a_setting_an_option_or_a_command(tool: str) -> None:
    sections = {name: [*RUN.sections[name].kinds.values()] for name in RUN.names if name in RUN.sections}
    sections["rewards"] = list(REWARD_KINDS.values())
    names = {f"{section}.{key}" for section, kinds in sections.items() for kind in kinds for key in kind.model_fields}
    names |= {f"{section}.kind" for section in sections} | {"rewards"}
    command: Any = typer.main.get_command(app)
    names |= {option for parameter in command.commands["train"].params for option in parameter.opts}
    names |= {f"oncurve {name}" for name in command.commands}
    assert sorted({plain(name) for key in keys(tool) for name in key.ours} - names) == []


def plain(name: str) -> str:
    """A setting of one reward without the reward's number: `rewards.0.weight` is `rewards.weight`."""
    return re.sub(r"^rewards\.\d+\.", "rewards.", name)


@pytest.mark.parametrize("tool", DIALECTS)
def test_hints_for_unknown_keys_and_the_table_do_not_contradict_each_other(tool: str) -> None:
    """A key whose last part is a hint's word, too: one setting at least is in both, or neither has one."""
    wrong = []
    for key in keys(tool):
        hint = word_for(key.theirs)
        if hint is not None and key.theirs.rpartition(".")[2].lower() in known_words() and key.ours and hint.keys:
            ours, hinted = {plain(name) for name in key.ours}, {plain(name) for name in hint.keys}
            if not ours & hinted and not ("rewards" in ours and any(name.startswith("rewards.") for name in hinted)):
                wrong.append((key.theirs, key.ours, hint.keys))
    assert wrong == []
