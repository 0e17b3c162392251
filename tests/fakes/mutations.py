"""Settings of another tool as people get them wrong, and the property that each is translated or refused.

`mutations` makes them from valid settings: names with typos, without their section, in other letters; values of other
types, empty, null, huge, long; settings that are given twice or left out. `accounted` checks one of them.
"""

import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.compat import Translation, config_of, recipe_of

Pairs = tuple[tuple[str, Any], ...]

LONG = 20_000
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 10**30, 0.5, -0.0, 1e-9, 1e400, float("nan"), [], [1, 2], ["a", None], {},
    {"a": {"b": 1}}, "", " ", "null", "None", "true", "1", "1e-6", "-1", "0x10", "nan", "inf", "one", "[1, 2",
    "{a: 1}", "a=b", "--x", "${x}", "'", '"', "\\", "\n", "\x00", "é", "\u0665", "数", "\ud7ff", "x" * LONG,
    "9" * LONG, "[" * LONG,
)  # fmt: skip
"""Values for any setting; those that are right for one are translated."""
WORDS = tuple(value for value in VALUES if isinstance(value, str))


@dataclass(frozen=True)
class Mutation:
    """Settings in their order, a name may occur twice; `what` was done to the one called `name` (as it is given)."""

    what: str
    name: str
    pairs: Pairs


def mutations(valid: Mapping[str, Any], count: int, seed: int = 0, *, texts: bool = False) -> Iterator[Mutation]:
    """`count` mutations of `valid`, the same ones for a seed; `texts`: every value is a string, as in a shell."""
    draw = random.Random(seed)
    for number in range(count):
        name = draw.choice(list(valid))
        yield CHANGES[number % len(CHANGES)](dict(valid), name, draw, WORDS if texts else VALUES)


def _renamed(what: str, valid: dict[str, Any], old: str, new: str) -> Mutation:
    return Mutation(f"{what}: {old!r}", new, tuple((new if name == old else name, valid[name]) for name in valid))


def _typo(valid: dict[str, Any], name: str, draw: random.Random, _: Sequence[Any]) -> Mutation:
    at = draw.randrange(len(name))
    letter = draw.choice("aeinrstx_")
    new = draw.choice(
        [name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name[:at] + name[at + 1 : at + 2] + name[at:],
         name.swapcase(), name + "s", name + "."]
    )  # fmt: skip
    return _renamed("typo", valid, name, new or "x")


def _other_letters(valid: dict[str, Any], name: str, draw: random.Random, _: Sequence[Any]) -> Mutation:
    at = draw.randrange(len(name) + 1)
    return _renamed("letters", valid, name, name[:at] + draw.choice("éаß\u200b \tİ数=:") + name[at:])


def _section(valid: dict[str, Any], name: str, draw: random.Random, _: Sequence[Any]) -> Mutation:
    new = draw.choice(
        [name.rpartition(".")[2] + "_", f"other.{name}", f"{name}.x", name.replace(".", "_") + "_", "x" * LONG]
    )
    return _renamed("section", valid, name, new)


def _value(valid: dict[str, Any], name: str, draw: random.Random, values: Sequence[Any]) -> Mutation:
    return Mutation("value", name, tuple((valid | {name: draw.choice(values)}).items()))


def _twice(valid: dict[str, Any], name: str, draw: random.Random, values: Sequence[Any]) -> Mutation:
    return Mutation("twice", name, (*valid.items(), (name, draw.choice([valid[name], *values]))))


def _left_out(valid: dict[str, Any], name: str, draw: random.Random, _: Sequence[Any]) -> Mutation:
    del valid[name]
    return Mutation("left out", name, tuple(valid.items()))


def _alone(valid: dict[str, Any], name: str, draw: random.Random, values: Sequence[Any]) -> Mutation:
    return Mutation("alone", name, ((name, draw.choice([valid[name], *values])),))


CHANGES = (_typo, _value, _section, _value, _twice, _other_letters, _alone, _left_out, _value)


def accounted(mutation: Mutation, translate: Callable[[Pairs], Translation]) -> str:
    """ "refused", "impossible" or "translated"; anything else than a message or a line per setting is a failure.

    "impossible": the translation is right, and oncurve's rules refuse it. A name that is given in the dialect's own
    way (`+name`, `--name`) is compared without its marks.
    """
    try:
        translation = translate(mutation.pairs)
    except ConfigError as error:
        refused = str(error)
    else:
        return _translated(mutation, translation)
    _readable(refused)
    names = {name for name, _ in mutation.pairs} | {mutation.name}
    said = [part for name in names for part in (name[:60].strip(), repr(name)[1:60], name.partition("=")[0])]
    assert any(part in refused for part in said if part), (mutation, refused)
    return "refused"


def _translated(mutation: Mutation, translation: Translation) -> str:
    lines = {line.key.theirs for line in translation.given()}
    for name, _ in mutation.pairs:
        assert name.lstrip("+-~") in lines, f"{mutation.what}: {name[:60]!r} is in neither translation nor message"
    try:
        config, _ = config_of(translation)
    except ConfigError as error:
        _readable(str(error))
        return "impossible"
    assert tables_in(recipe_of(translation)) == _nones(translation.settings)
    assert config is not None
    return "translated"


def tables_in(text: str) -> dict[str, Any]:
    """The tables of a printed recipe, with None where it has the text for it."""
    return {key: _nones(value) for key, value in tomllib.loads(text).items()}


def _nones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nones(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_nones(each) for each in value]
    return None if value == "none" else value


def _readable(message: str) -> None:
    assert message.strip()
    assert len(message) < 4000, message[:500]
    assert "Traceback" not in message
    assert all(len(line) < 1000 for line in message.splitlines()), message
