"""The page of the site about configuration, from the classes: every key with its default and its meaning."""

from __future__ import annotations

from pathlib import Path

from oncurve.components import Component, rules_of
from oncurve.config.layers import PRESETS
from oncurve.config.rules.combinations import IMPOSSIBLE, INERT
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.config.sentences.plan import key_facts, names
from oncurve.rewards import REWARD_KINDS, RewardSettings

INTRODUCTION = """\
# Configuration

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
`oncurve config explain RECIPE` prints the objective as an equation with its numbers filled in, and `oncurve config
explain rollout.top_p` prints what is here about one key.
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
    text += f"\n`kind`: one of {names(section.kinds)}, or a class by path. Default: `{section.default}`.\n"
    shared = _shared(list(section.kinds.values()))
    if shared:
        text += f"\nEvery kind has:\n\n{_rows(next(iter(section.kinds.values())), shared)}"
    return text + "".join(_kind(kind, cls, shared) for kind, cls in section.kinds.items())


def _rewards() -> str:
    text = "## `[[rewards]]`\n\nA list: each table is one reward; a completion gets the weighted sum of them. "
    text += f"`kind`: one of {names(REWARD_KINDS)}, or a class by path; left out where there is a `path`: `python`.\n"
    text += f"\nEvery kind has:\n\n{_table(RewardSettings)}"
    for kind, cls in REWARD_KINDS.items():
        every = RewardSettings.model_fields
        text += _kind(kind, cls, [name for name in every if cls.model_fields[name].default == every[name].default])
    return text


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


def _rows(cls: type[Component], fields: list[str]) -> str:
    lines = ["| key | default | values | meaning |", "|---|---|---|---|"]
    for name in fields:
        cells = (f"`{name}`", *key_facts(cls, name))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page())
