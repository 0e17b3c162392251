"""Every setting with values that no setting means: refused in words, or loaded and all that follows can be said."""

import json
import math
import tomllib
from typing import Any

import pytest

from fakes.tables import table
from oncurve.base.errors import UserError
from oncurve.config.loading import load_config, to_toml
from oncurve.config.sections import SECTIONS
from oncurve.config.sentences.plan import explain, plan
from oncurve.rewards import REWARD_KINDS

NUMBERS = [0, -1, 10**9, 2**63, 10**5000, 0.5, 1e308, 5e-324, math.nan, True]
TEXTS = ["", "x" * 50_000, "a\0b", "\ud800", "é🦙", "~nouser/x", "/".join(["d"] * 3000), "a.py:b"]
OTHERS: list[Any] = [[], [10**30], [[[]]], {"a": 1}]
VALUES = [*NUMBERS, *TEXTS, *OTHERS]


def tables() -> list[tuple[str, str, dict[str, Any]]]:
    """Section, key, and the other settings that it needs, for every key of every kind."""
    kinds = [(name, kind, cls) for name, section in SECTIONS.items() for kind, cls in section.kinds.items()]
    needed = {"regex": {"pattern": "x"}, "python": {"path": "a:b"}}
    found = [
        (name, key, {"kind": kind} if SECTIONS[name].default is not None else {})
        for name, kind, cls in kinds
        for key in cls.model_fields
    ]
    return found + [
        ("rewards", key, {"kind": kind} | needed.get(kind, {}))
        for kind, cls in REWARD_KINDS.items()
        for key in cls.model_fields
    ]


@pytest.mark.parametrize("section", [*SECTIONS, "rewards"])
def test_every_setting_refuses_or_bears_what_nobody_means(section: str) -> None:
    for name, key, rest in tables():
        for value in VALUES if name == section else ():
            table = rest | {key: value}
            try:
                config, _ = load_config(settings={section: [table] if section == "rewards" else table})
            except UserError:
                continue
            explain(config)
            json.dumps(plan(config)).encode()
            tomllib.loads(to_toml(config)).items()
            kept = getattr(config.rewards[0] if section == "rewards" else getattr(config, section), key)
            if isinstance(kept, (int, float)):
                assert -(2**63) <= kept < 2**63 or 1e-38 <= abs(kept) <= 1e38


@pytest.mark.parametrize(("setting", "least"), table("hostile_settings", "least"))
def test_what_is_refused_says_what_would_do(setting: str, least: str) -> None:
    with pytest.raises(UserError, match=r"^\w+\.\w+: .*") as refused:
        load_config(overrides=[setting])
    assert least in str(refused.value)
    assert "(the command line)" in str(refused.value)
