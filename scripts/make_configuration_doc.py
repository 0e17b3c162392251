"""Write docs/configuration.md from the classes: every key with its default and its meaning.

python scripts/make_configuration_doc.py          writes the page
python scripts/make_configuration_doc.py --check  exit code 1 where the committed page is not what it would write
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from oncurve.components import Component, rules_of
from oncurve.config.layers import PRESETS
from oncurve.config.rules.combinations import IMPOSSIBLE, INERT
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.kl import KL_KINDS
from oncurve.losses import AGGREGATION_KINDS, KLPenalty
from oncurve.rewards import REWARD_KINDS, RewardSettings
from oncurve.tracking import TRACKER_KINDS, TrackingSettings

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
NAMES_OF = {
    (KLPenalty, "estimator"): KL_KINDS,
    (KLPenalty, "aggregation"): AGGREGATION_KINDS,
    (TrackingSettings, "to"): TRACKER_KINDS,
}

INTRODUCTION = """\
# Configuration

<!-- Written by scripts/make_configuration_doc.py; a test compares it with the classes. -->

A recipe is a TOML file (YAML is read too) of sections with settings. Every key has a vetted default; what a run cannot
do without is `model.path`, some data and a reward:

```toml
extends = "dr_grpo"                     # a preset, another recipe (relative to this one), or a list of them

[model]
path = "Qwen/Qwen2.5-0.5B-Instruct"

[data]
path = "gsm8k.jsonl"                    # relative to this file
template = "{question}\\nEnd with #### and the number."

[[rewards]]
kind = "math"
```

Later layers win: class defaults, then what the recipe extends (of a list, `["dr_grpo", "lora"]`, the later ones), then
the recipe, then the command line. There
`section.key=value` takes a TOML value (`learner.learning_rate=2e-6`, `rollout.stop=["\\n\\n"]`, `rewards.0.weight=2`,
`extends=dr_grpo`, `extends=[dr_grpo,lora]`), `null` for none, and anything else as a string. `extends` on the command
line takes the place of the presets that the recipe extends; a recipe that it extends stays. A `kind` that holds a colon
is a class of yours: `"my_lab.credit:MedianBaseline"`, or `"credit.py:MedianBaseline"` relative to the recipe. When a
layer changes a section's `kind`, values of lower layers are kept for those keys that the new kind has with the same
type.

An unknown key is an error that names the nearest one. `oncurve config show RECIPE` prints the resolved file,
`oncurve config explain RECIPE` prints the objective as an equation with its numbers filled in.
"""


def page() -> str:
    """Return the whole page."""
    presets = [f"* `{preset.stem}`: {_comment(preset)}" for preset in sorted(PRESETS.glob("*.toml"))]
    parts = [INTRODUCTION, "Presets:\n\n" + "\n".join(presets) + "\n"]
    for name in RunConfig.model_fields:
        parts.append(_rewards() if name == "rewards" else _section(name))
    own = [cls for section in SECTIONS.values() for cls in section.kinds.values()]
    of_rewards = [rule.message for cls in REWARD_KINDS.values() for rule in cls.impossible]
    forbidden = dict.fromkeys([*IMPOSSIBLE, *(rule for cls in own for rule in rules_of(cls, "impossible"))])
    meaningless = dict.fromkeys([*INERT, *(rule for cls in own for rule in rules_of(cls, "inert"))])
    impossible = [f"* {rule.message}." for rule in forbidden] + [f"* rewards.N.{said}." for said in of_rewards]
    inert = [f"* {', '.join(f'`{key}`' for key in rule.keys)}: {rule.reason}." for rule in meaningless]
    parts.append("## Combinations that are refused\n\n" + "\n".join(impossible) + "\n")
    parts.append(
        "## Keys without effect next to other settings\n\nA layer (a file, the command line) that sets both is "
        "refused. If different layers set them, the plan names the key without effect.\n\n" + "\n".join(inert) + "\n"
    )
    return "\n".join(parts)


def _comment(preset: Path) -> str:
    lines = preset.read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")])


def _section(name: str) -> str:
    section = SECTIONS[name]
    text = f"## `[{name}]`\n"
    if section.default is None:
        cls = next(iter(section.kinds.values()))
        return f"{text}\n{_summary(cls)}\n\n{_table(cls)}"
    text += f"\n`kind`: one of {_names(section.kinds)}, or a class by path. Default: `{section.default}`.\n"
    shared = _shared(list(section.kinds.values()))
    if shared:
        text += f"\nEvery kind has:\n\n{_rows(next(iter(section.kinds.values())), shared)}"
    return text + "".join(_kind(kind, cls, shared) for kind, cls in section.kinds.items())


def _rewards() -> str:
    text = "## `[[rewards]]`\n\nA list: each table is one reward; a completion gets the weighted sum of them. "
    text += f"`kind`: one of {_names(REWARD_KINDS)}, or a class by path; left out where there is a `path`: `python`.\n"
    text += f"\nEvery kind has:\n\n{_table(RewardSettings)}"
    for kind, cls in REWARD_KINDS.items():
        every = RewardSettings.model_fields
        text += _kind(kind, cls, [name for name in every if cls.model_fields[name].default == every[name].default])
    return text


def _names(kinds: Iterable[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in kinds)


def _shared(classes: list[type[Component]]) -> list[str]:
    """Fields that all the kinds have with the same default, where there are several kinds."""
    first, *others = classes
    return [
        name
        for name, field in first.model_fields.items()
        if others
        and all(name in other.model_fields and other.model_fields[name].default == field.default for other in others)
    ]


def _kind(kind: str, cls: type[Component], shared: list[str]) -> str:
    own = [name for name in cls.model_fields if name not in shared]
    return f'\n### `kind = "{kind}"`\n\n{_summary(cls)}\n' + (f"\n{_rows(cls, own)}" if own else "")


def _summary(cls: type[Component]) -> str:
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def _table(cls: type[Component]) -> str:
    return _rows(cls, list(cls.model_fields))


def _rows(cls: type[Component], names: list[str]) -> str:
    meanings = field_meanings(cls)
    lines = ["| key | default | values | meaning |", "|---|---|---|---|"]
    for name in names:
        field = cls.model_fields[name]
        values = _names(NAMES_OF[cls, name]) if (cls, name) in NAMES_OF else _values(field.annotation)
        if (cls, name) == (TrackingSettings, "to"):
            values = f"list of {values}, or classes by path"
        cells = (f"`{name}`", _default(field), values, meanings[name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def field_meanings(cls: type[Component]) -> dict[str, str]:
    """Return the string under each field of a class, or of the base that declares it last.

    Raises SystemExit: a field without one.
    """
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(Component)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, said in itertools.pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            match field, said:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    meanings[name] = " ".join(text.split())
    missing = ", ".join(cls.model_fields.keys() - meanings.keys())
    if missing:
        raise SystemExit(
            f"{cls.__name__}: a string under each field must say what it means, and there is none: {missing}"
        )
    return meanings


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{list(value) if isinstance(value, tuple) else format(value, 'g') if isinstance(value, float) else value}`"


NAMES = {int: "whole number", float: "number", str: "string", bool: "true, false", type(None): "none", Any: "anything"}


def _values(annotation: Any) -> str:
    """Return the type in words."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f'`"{choice}"`' if isinstance(choice, str) else f"`{choice}`" for choice in inner)
    if origin is typing.Annotated:
        return _values(inner[0])
    if origin in (tuple, list):
        kinds = list(dict.fromkeys(_values(each) for each in inner if each is not Ellipsis))
        return f"list of {' or '.join(kinds)}"
    if origin is dict:
        return "table"
    if inner and (origin is typing.Union or str(origin) == "<class 'types.UnionType'>"):
        return " or ".join(_values(each) for each in inner)
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it. Returns the exit code."""
    text = page()
    if arguments == ["--check"]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        advice = "current" if current else "out of date: run scripts/make_configuration_doc.py"
        sys.stdout.write(f"{PAGE.name} is {advice}\n")
        return 0 if current else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
