"""Other tools' names of settings and kinds, for error messages: `hints.toml`, which is read when one needs it.

The error for an unknown key, argument or kind names the one to use here. A name may be dotted; of a name with sections
before it (`actor_rollout_ref.rollout.n`) the longest ending in the table counts.

Covered: names of settings, of kinds and of methods. Not covered: other values and units, but for a note where they
differ.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class Word(NamedTuple):
    """The settings for another tool's name (none: there is no such setting), and a note on differences."""

    keys: tuple[str, ...]
    note: str = ""

    def __str__(self) -> str:
        """For example: `kl.where ("loss" or "reward")`."""
        keys = " and ".join(self.keys)
        return f"{keys} ({self.note})" if keys and self.note else keys or self.note


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def known_words() -> dict[str, Word]:
    """Return the settings by another tool's name, in lower case."""
    words = {row["names"]: Word(tuple(row.get("keys", ())), row.get("note", "")) for row in _tables()["settings"]}
    return {name: word for names, word in words.items() for name in names.split()}


@cache
def known_kinds() -> dict[str, dict[str, str]]:
    """Return by section the kinds by another tool's name of one; "": an example in docs/extending.md."""
    tables, examples = _tables()["kinds"], _tables()["examples"]
    return {
        section: {name: kind for kind, names in table.items() for name in names.split()}
        | dict.fromkeys(examples.get(section, "").split(), "")
        for section, table in tables.items()
    }


def method_for(name: str) -> str | None:
    """Return what is nearest to a method that has no preset, or None if the table does not have it."""
    return next((row["note"] for row in _tables()["methods"] if name.lower() in row["names"].split()), None)


def kind_for(where: str, written: str) -> str:
    """Return `"; did you mean 'x'?"` for another tool's kind of the section that `where` begins with, or ""."""
    kind = known_kinds().get(where.split(".")[0], {}).get(written.lower())
    return f"; did you mean {kind!r}?" if kind else "" if kind is None else "; docs/extending.md has it as an example;"


def word_for(written: str) -> Word | None:
    """Return the settings for the key `written`, with or without sections before it, or None if the table lacks it.

    Hydra's marks before it (`+`, `++`, `~`) and capitals are ignored.
    """
    parts = written.lstrip("+~").lower().split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    return next((known_words()[ending] for ending in endings if ending in known_words()), None)
