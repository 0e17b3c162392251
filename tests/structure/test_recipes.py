"""Every shipped recipe and preset loads; the configuration keeps its bounds; its page is current."""

import re
import tomllib
from pathlib import Path

import pytest

from fakes.tables import table
from oncurve.base.imports import locate, trusting
from oncurve.config.layers import PRESETS, RECIPES, SUFFIXES, read_layers, shipped
from oncurve.config.loading import load_config, to_toml
from oncurve.config.rules.combinations import inert, missing
from oncurve.config.schema import Section
from oncurve.config.sections import SECTIONS, RunConfig
from oncurve.config.sentences.keys import meanings as meanings_of
from oncurve.config.sentences.plan import explain, plan
from oncurve.data import InMemory, load_rows
from oncurve.rewards import REWARD_KINDS
from oncurve.run.commands.reward_models import REWARD_MODEL

ALL_KINDS = [
    REWARD_KINDS,
    *(section.kinds for known in (SECTIONS, REWARD_MODEL.sections) for section in known.values()),
]
RUN_RECIPES = sorted(path for path in RECIPES.glob("*") if path.suffix in SUFFIXES)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
LEAVES_CAP = 94
OPTIONAL = set(table("recipes", "optional"))
"""Sections that a GRPO run does without. So it does without the kinds of a section that are not its default: of each
the keys of its own are counted by themselves."""
OPTIONAL_CAP = 10
SERVICE, SERVICE_CAP = {"model_judge", "host", "ray", *SECTIONS["environment"].kinds}, 21
"""Kinds that ask a service, half of whose keys are those of its request (decision 003), kinds of cluster, which have
ranks, workers and what they wait for (decision 007), and environments, with the limits of their workers (014)."""


@pytest.mark.parametrize("recipe", RUN_RECIPES, ids=lambda path: path.name)
def test_every_recipe_loads_explains_and_survives_being_written(recipe: Path, tmp_path: Path) -> None:
    config, folder = load_config(recipe)
    assert folder == recipe.parent
    assert explain(config).startswith("J(θ) = ")
    assert not inert(config)
    holes = {line.split(":")[0] for line in missing(config)}
    assert holes <= {"model.path", "data.path", "reward_model.path", "environment.kind"}
    assert not [line for line in plan(config) if line.startswith("note: ")]
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    with trusting(given=True):  # the folder is no run that this user has made
        assert load_config(tmp_path)[0] == config


@pytest.mark.parametrize("name", sorted(shipped(RECIPES)))
def test_a_recipe_begins_with_its_command_and_names_files_of_the_package(name: str) -> None:
    recipe = shipped(RECIPES)[name]
    head = recipe.read_text(encoding="utf-8").partition("\n\n")[0].replace("#\n", "")
    assert re.search(rf"^#   oncurve (reward-model )?train {re.escape(name)} ", head, re.MULTILINE)
    assert all(each in shipped(RECIPES) for each in re.findall(r"oncurve (?:reward-model )?train (\S+)", head))
    layers, _ = read_layers(recipe)
    named = [str(value) for layer in layers for path, value in layer.assignments if path[-1] == "path"]
    files = [re.sub(r"(\.py):\w+$", r"\1", value) for value in named if not HUB_ID.fullmatch(value)]
    assert all(Path(file).exists() for file in files)


@pytest.mark.parametrize("recipe", RUN_RECIPES, ids=lambda path: path.name)
def test_the_code_a_recipe_names_is_there(recipe: Path) -> None:
    config, _ = load_config(recipe)
    for reward in config.rewards:
        for value in reward.model_dump().values():
            if isinstance(value, str) and ".py:" in value:
                assert callable(locate(value))
    if isinstance(config.data, InMemory):
        assert load_rows(config.data)


@pytest.mark.parametrize("preset", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_preset_loads_by_its_name_and_begins_with_its_source(preset: Path) -> None:
    config, _ = load_config(preset.stem)
    assert explain(config).startswith("J(θ) = ")
    assert preset.read_text(encoding="utf-8").startswith("# ")
    assert not inert(config)


def test_the_preset_grpo_is_the_class_defaults() -> None:
    assert load_config("grpo")[0] == RunConfig()


def test_the_configuration_has_no_more_leaves_than_a_person_can_know() -> None:
    leaves: set[tuple[str, str]] = set()
    for name, section in {**SECTIONS, "rewards": Section(REWARD_KINDS, "python")}.items():
        own = {kind: {(name, key) for key in cls.model_fields} for kind, cls in section.kinds.items()}
        leaves |= own[section.default or next(iter(own))] | ({(name, "kind")} if len(own) > 1 else set())
        for kind, keys in own.items():
            assert len(keys - leaves) <= (SERVICE_CAP if kind in SERVICE else OPTIONAL_CAP), (name, kind)
    needed = {leaf for leaf in leaves if leaf[0] not in OPTIONAL}
    assert len(needed) <= LEAVES_CAP, len(needed)
    for name in OPTIONAL:
        assert len([leaf for leaf in leaves if leaf[0] == name]) <= OPTIONAL_CAP


def test_every_section_of_the_configuration_is_in_the_table() -> None:
    assert set(RunConfig.model_fields) == {*SECTIONS, "rewards"}


def test_a_string_under_every_field_says_what_it_means() -> None:
    wrong = []
    for cls in {cls for kinds in ALL_KINDS for cls in kinds.values()}:
        meanings = meanings_of(cls)
        wrong += [f"{cls.__name__}.{name}" for name in cls.model_fields.keys() - meanings.keys()]
        wrong += [f"{cls.__name__}.{name}" for name, said in meanings.items() if not said.endswith(".")]
    assert wrong == []


def test_presets_set_nothing_but_an_algorithms_own() -> None:
    for preset in PRESETS.glob("*.toml"):
        sections = tomllib.loads(preset.read_text(encoding="utf-8")).keys()
        assert sections <= set(table("recipes", "of_presets"))
