"""The end of each command's help: examples, and the names of presets, recipes and machines."""

import re
import tomllib
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from oncurve.base.errors import refuse

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")

EXAMPLES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))
"""Command lines of each command, for its help."""

OPTIONS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("options.toml").read_text("utf-8"))
"""The help of arguments and options, by command."""


def _lists(name: str) -> dict[str, list[str]]:
    """Return words that a command takes, for the end of its help."""
    from oncurve.base.paths import PRESETS, RECIPES, shipped

    if name in ("train", "config show", "config explain", "data check", "reward check", "init"):
        recipes = [each for each in shipped(RECIPES) if "/" not in each]
        return {"Recipes": recipes} | ({} if name == "init" else {"Presets": list(shipped(PRESETS))})
    if name == "plan":
        from oncurve.forecast import MACHINES

        return {"Machines": list(MACHINES)}
    return {}


class CommandWithExamples(TyperCommand):
    """A command whose help ends with examples and the words that it takes.

    An option that is a setting, perhaps under another tool's name, is answered with the word to type.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raises ConfigError: an option is a setting; the message has it in words that there are."""
        if any(each.name == "overrides" for each in self.params) and "--verl" not in args:
            self._check_options(args)
        return list(super().parse_args(ctx, args))

    def _check_options(self, args: list[str]) -> None:
        known, wrong = {"--help", "-h", *(option for each in self.params for option in each.opts)}, list[str]()
        for word, following in zip(args, (*args, "VALUE")[1:], strict=True):
            option, equals, value = word.partition("=")
            if option not in known and _OPTION.fullmatch(option):
                from oncurve.run import words_for

                words = words_for(option, value if equals else following, known)
                wrong += [] if words is None else [f"no such option: {option}; {words}"]
        refuse(wrong)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, with their texts from `options.toml`."""
        texts = OPTIONS["all"] | OPTIONS.get(ctx.command_path.partition(" ")[2], {})
        each: Any
        for each in self.params:
            each.help = "" if each.hidden else texts[each.opts[0]]
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, then recipes, presets or machines by name."""
        name = ctx.command_path.partition(" ")[2]
        with formatter.section("Examples"):
            for example in EXAMPLES[name]:
                formatter.write(f"  {example}\n")
        for title, words in _lists(name).items():
            with formatter.section(title):
                formatter.write_text(", ".join(words))
