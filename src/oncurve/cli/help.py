"""The end of each command's help: examples, and the names of presets, recipes and machines."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from oncurve.base.errors import ConfigError

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")

EXAMPLES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))
"""Command lines of each command, for its help."""


def _lists(name: str) -> dict[str, list[str]]:
    """Return words that a command takes, for the end of its help."""
    from oncurve.base.shipped import PRESETS, RECIPES, shipped

    if name in ("train", "config show", "config explain", "data check", "reward check", "init"):
        recipes = [each for each in shipped(RECIPES) if "/" not in each]
        return {"Recipes": recipes} | ({} if name == "init" else {"Presets": list(shipped(PRESETS))})
    if name == "plan":
        from oncurve.forecast import MACHINES

        return {"Machines": list(MACHINES)}
    return {}


class CommandWithExamples(TyperCommand):
    """A command whose help ends with examples and the words that it takes.

    An option that is a setting, perhaps under another tool's name, is answered with the command to type.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raises ConfigError with the same command in words that there are."""
        if any(each.name == "overrides" for each in self.params) and "--verl" not in args:
            self._check_options(ctx.command_path, args)
        return list(super().parse_args(ctx, args))

    def _check_options(self, path: str, args: list[str]) -> None:
        known = {option: each for each in self.params for option in each.opts} | {"--help": None, "-h": None}
        typed, unknown, notes, first = list[str](), list[str](), list[str](), True
        rest = iter(args)
        for word in rest:
            option, equals, value = word.partition("=")
            if option in known or not _OPTION.fullmatch(option):
                typed.append(word)
                takes = known.get(option)
                if takes is not None and not equals and not getattr(takes, "is_flag", False):
                    typed.extend(islice(rest, 1))
                elif option not in known and not equals:
                    first = False
                continue
            value = value if equals else next(rest, "VALUE")
            from oncurve.run import words_for

            words, note = words_for(option, value, known)
            unknown.append(option)
            notes += [f"{option}: {note}"] if note else []
            if not words and not note:
                return  # not like any: the parser's own error
            if words == [f"model.path={value}"] and first:
                typed.insert(0, value)
                first = False
            else:
                typed.extend(words)
        if unknown:
            notes += ["a setting is a word section.key=value"]
            line = f"; the same command in words of oncurve: {shlex.join([*path.split(), *typed])}"
            raise ConfigError(f"no such option: {', '.join(unknown)} ({'; '.join(notes)}){line}")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, then recipes, presets or machines by name."""
        name = ctx.command_path.partition(" ")[2]
        with formatter.section("Examples"):
            for example in EXAMPLES[name]:
                formatter.write(f"  {example}\n")
        for title, words in _lists(name).items():
            with formatter.section(title):
                formatter.write_text(", ".join(words))
