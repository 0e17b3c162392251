"""The names and shapes that docs/stability.md promises are those of the code."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from fakes.project import Said
from fakes.scripts import script

PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")


def test_the_lists_are_the_names_of_the_code() -> None:
    assert script("site/stable_names").filled(PAGE) == PAGE, "look at what changes, then: scripts/site/stable_names.py"


def test_every_command_with_json_has_the_promised_keys(command: Callable[..., Said]) -> None:
    promised = {
        name: re.findall(r"`(\w+)`", keys) for name, keys in re.findall(r"^\| `([\w -]+)` \| (.*) \|$", PAGE, re.M)
    }
    lists = script("site/stable_names").lists()["commands"]
    assert set(promised) == {line.partition(":")[0] for line in lists.splitlines() if "--json" in line}
    assert command("train", "recipe.toml", "--out", "runs/made").code == 0
    for words in (
        ("runs", "runs"),
        ("doctor", "runs/made"),
        ("show", "runs/made"),
        ("eval", "runs/made", "--limit", "2"),
        ("data check", "recipe.toml"),
        ("reward check", "recipe.toml", "--sample"),
        ("plan", "recipe.toml"),
    ):
        found = json.loads(command(*words[0].split(), *words[1:], "--json").out.splitlines()[-1])
        there = set(found[0] if isinstance(found, list) else found)
        known = set(promised[words[0]]) - ({"completions", "prompt", "row"} if words[0] == "show" else set())
        assert known - there <= {"greedy_accuracy"}, words
        assert there <= set(promised[words[0]]), words
