"""The names and shapes that docs/stability.md promises are those of the code."""

import json
import re
from pathlib import Path

from fakes.project import Command
from fakes.scripts import script
from fakes.tables import table
from oncurve.report import EvaluationFiles

PAGE = (Path(__file__).parents[2] / "docs" / "stability.md").read_text(encoding="utf-8")


def test_the_lists_are_the_names_of_the_code() -> None:
    assert script("site/stable_names").filled(PAGE) == PAGE, "look at what changes, then: scripts/site/stable_names.py"


def test_every_command_with_json_has_the_promised_keys(command: Command) -> None:
    promised = {
        name: re.findall(r"`(\w+)`", keys) for name, keys in re.findall(r"^\| `([\w -]+)` \| (.*) \|$", PAGE, re.M)
    }
    lists = script("site/stable_names").lists()["commands"]
    assert {name.partition(" --")[0] for name in promised} == {
        line.partition(":")[0] for line in lists.splitlines() if "--json" in line
    }
    evaluated = ("eval.every=1", "data.eval_fraction=0.5")
    assert command("train", "recipe.toml", *evaluated, "--out", "runs/made").code == 0
    problem = str(max(EvaluationFiles(Path("runs/made")).read(1)))
    for name, *words in table("stability", "commands"):
        words = [word.replace("PROBLEM", problem) for word in words]
        found = json.loads(command(*name.split(), *words, "--json").fine().out.splitlines()[-1])
        there = set(found[0] if isinstance(found, list) else found)
        assert set(promised[name]) - there <= {"greedy_accuracy", "problem", "problems", "results"}, name
        assert there <= set(promised[name]), name
