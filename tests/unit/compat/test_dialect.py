"""The translation of another tool's settings by a table, in Python or TOML, and the recipe that is printed of it."""

import tomllib
from pathlib import Path

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Dialect, Key, Said, Values, keys_of
from oncurve.compat.recipe import config_of, recipe_of

TOOL = Dialect(
    "tool",
    "1.0",
    (
        Key("optim.lr", ("learner.learning_rate",), types=(float,), default=1e-5, applied=True),
        Key("optim.decay", ("learner.weight_decay",), types=(float,), default=0.01, applied=True),
        Key(
            "rows",
            ("data.prompts_per_step",),
            "in completions",
            lambda rows, values: _prompts(rows, values),
            types=(int,),
        ),
        Key("group", ("rollout.group_size",), types=(int,), default=4),
        Key("size", ("rollout.group_size",), types=(int,)),
        Key("fused", (), "always"),
        Key("workers.*", (), "there are none"),
        Key("workers.noise", (), "nothing is added", refused=True, harmless=(0,)),
        Key("top_p", (), "completions are sampled whole", refused=True, harmless=(1, 1.0, None)),
        Key("stop", ("rollout.stop",), types=(list, str)),
        Key(
            "reward",
            ("rewards",),
            types=(str,),
            make=lambda name, _: {"rewards": [{"kind": name, "kwargs": {"a b": [1, "x"]}}]},
        ),
        Key("reward_two", ("rewards",), types=(str,), make=lambda name, _: {"rewards": [{"kind": name}]}),
    ),
)


def _prompts(rows: int, values: Values) -> dict[str, int]:
    if values["group"] < 1 or rows % values["group"]:
        raise ConfigError(f"{rows} completions are no whole groups of {values['group']}")
    return {"data.prompts_per_step": rows // values["group"]}


def given(**values: object) -> dict[str, Said]:
    return {name.replace("__", "."): Said(value, "line 3") for name, value in values.items()}


def test_what_stands_in_a_section_without_meaning_is_no_error_but_for_its_own_keys():
    found = TOOL.translate(given(workers=None, workers__a__b=1, workers__noise=0))
    assert [(line.key.theirs, line.key.fate) for line in found.given()] == [
        ("workers.noise", "refused"),
        ("workers", "no meaning"),
        ("workers.a.b", "no meaning"),
    ]
    assert found.settings == TOOL.translate({}).settings
    for name, why in (("workers__noise", "nothing is added"), ("workersa", "no such setting")):
        with pytest.raises(ConfigError, match=why):
            TOOL.translate(given(**{name: 1}))


def test_every_given_key_has_a_line_and_a_default_of_the_tool_is_applied():
    found = TOOL.translate(given(optim__lr=1, rows=16, group=8, fused=True))
    assert found.settings == table("dialect", "settings")
    assert found.counted() == "4 keys of tool: 3 translated, 1 without meaning here; 1 defaults of tool that differ"


def test_every_problem_is_said_with_its_place():
    said = message_of(ConfigError, TOOL.translate, given(optim__lrr=1, group=True, rows=3, top_p=0.9, lr=2))
    assert said.splitlines() == table("dialect", "problems")


def test_a_harmless_value_of_a_refused_key_is_no_error():
    assert TOOL.translate(given(top_p=1.0)).settings.keys() == {"learner"}
    with pytest.raises(ConfigError, match="not available"):
        TOOL.translate(given(top_p=True))


def test_two_keys_that_are_one_setting_must_agree():
    assert TOOL.translate(given(group=3, size=3)).settings["rollout"] == {"group_size": 3}
    with pytest.raises(ConfigError, match=r"size: makes rollout.group_size 4, and group makes it 3; leave one"):
        TOOL.translate(given(group=3, size=4))


def test_the_recipe_is_the_settings_with_a_comment_at_each():
    found = TOOL.translate(given(stop=['"', "\n\n"], reward="math", reward_two="exact", fused="a\nb", rows=8))
    text = recipe_of(found)
    assert tomllib.loads(text) == found.settings
    assert "prompts_per_step = 2  # rows=8: in completions" in text
    assert "weight_decay = 0.01  # default of optim.decay" in text
    assert text.endswith("# Keys of tool without meaning here:\n#   fused=a b: always\n")


def test_none_in_a_recipe_is_the_text_that_stands_for_it():
    key = Key("limit", ("data.limit",), types=(int, type(None)))
    assert 'limit = "none"' in recipe_of(Dialect("tool", "1", (key,)).translate(given(limit=None)))


def test_a_key_that_makes_no_setting_of_its_own_is_listed_too():
    part = Key("reward.name", ("rewards",), "the function of reward.path", lambda name, values: {})
    harmless = Key("top_p", (), "no", refused=True, harmless=(1.0,))
    text = recipe_of(Dialect("tool", "1", (part, harmless)).translate(given(reward__name="f", top_p=1.0)))
    assert "#   reward.name=f: the function of reward.path\n" in text
    assert "#   top_p=1.0: no\n" in text


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        (given(group=1, optim__lr=-1), ["learner.learning_rate: ", "(tool: optim.lr=-1)"]),
        (given(group=1), ["rollout.group_size: ", "(tool: group=1)"]),
        (given(reward="maths"), ["rewards.0.kind: ", "(tool: reward=maths)"]),
    ],
)
def test_what_oncurve_refuses_is_said_with_the_tools_key(said, lines):
    found = message_of(ConfigError, lambda: config_of(TOOL.translate(said))).splitlines()
    assert next(line for line in found if line.startswith(lines[0])).endswith(lines[1])


def test_every_key_that_a_complaint_is_about_is_named():
    found = TOOL.translate(given(group=1, optim__lr=2.0))
    said = found.explained("rollout.group_size: set it to 2, or learner.learning_rate\nlearner.learning_rates: unknown")
    assert said.splitlines() == [
        "rollout.group_size: set it to 2, or learner.learning_rate (tool: optim.lr=2.0, group=1)",
        "learner.learning_rates: unknown",
    ]


@pytest.mark.parametrize(
    "row", ['theirs = "a"\nnotes = "x"', 'theirs = "a"\nmake = "missing"', 'theirs = "a"\ntypes = "int"', 'note = "x"']
)
def test_a_mistake_in_a_row_names_it(row: str, tmp_path: Path) -> None:
    (tmp_path / "rows.toml").write_text(f"[[keys]]\n{row}\n")
    with pytest.raises(ValueError, match=r"rows\.toml: (a|None): "):
        keys_of(tmp_path / "rows.toml", {})
