"""The commands that read other tools' settings: `oncurve config from-…`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncurve.errors import ConfigError, command
from oncurve.output import say

if TYPE_CHECKING:
    from oncurve.compat import Translation

RecipeOut = Annotated[
    Path | None, typer.Option("--out", help="Write the recipe to this file, which must not exist yet.")
]


def show_recipe(translation: Translation, out: Path | None) -> None:
    """Print a translation as a recipe, or write it. Raises ConfigError: the file exists, or cannot be written."""
    from oncurve.compat import recipe_of

    text = recipe_of(translation)
    if out is None:
        say(text.rstrip("\n"))
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{out}: exists already; name another file by --out") from None
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from error
    say(translation.counted())
    say(f"wrote {out}; look through it, then: {command('train', out)}")
