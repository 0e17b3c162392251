"""verl's rewards: a function of the user's, a reward model, or the checker that verl chooses by `data_source`.

verl has two names for most of these settings, `reward.*` and the older `custom_reward_function.*` and `reward_model.*`.
Without a function and without a reward model it looks at the column `data_source` of each row; checkers.toml has the
reward of each source. The files are read for it where they are there; the sources in them decide the recipe.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from oncurve.base.errors import ConfigError, DataError, shown
from oncurve.compat.dialect import MANY, Values
from oncurve.compat.verl.algorithm import advantage, either, local
from oncurve.compat.verl.run import paths
from oncurve.data import Files

OLD, NEW = "custom_reward_function", "reward.custom_reward_function"
MODELS = ("reward_model.model.path", "reward_model.model_path", "reward.reward_model.model_path")
SETS = ("reward.reward_kwargs", "reward_model.reward_kwargs")
BUFFERS = (*(f"{name}.overlong_buffer_cfg" for name in SETS), f"{OLD}.overlong_buffer", "reward_model.overlong_buffer")
A_FUNCTION = f"give a function of yours: {NEW}.path=rewards.py, which defines compute_score"
_TABLES = tomllib.loads(Path(__file__).with_name("checkers.toml").read_text(encoding="utf-8"))


class VerlChecker(NamedTuple):
    """A reward of ours for rows of some sources: its table, and how its values differ from verl's."""

    table: Mapping[str, Any]
    note: str


CHECKERS = {
    source: VerlChecker(row["table"], row["note"]) for row in _TABLES["checkers"] for source in row["sources"].split()
}
"""By a source of rows, or a pattern of sources."""
NO_CHECKER = {source: why for sources, why in _TABLES["refused"].items() for source in sources.split()}
"""By a source or a pattern, why oncurve has no checker for it."""


def _found(source: str, table: Mapping[str, Any]) -> Any:
    return next((each for pattern, each in table.items() if fnmatchcase(source, pattern)), None)


def checker_of(source: str) -> VerlChecker:
    """Return the checker of a source of rows. Raises ConfigError: verl has none for it, or oncurve has none."""
    checker: VerlChecker | None = _found(source, CHECKERS)
    if checker is None:
        why = _found(source, NO_CHECKER) or "verl has no reward for it either"
        raise ConfigError(f"rows of {shown(source)} have no checker here: {why}; {A_FUNCTION}")
    return checker


def checker_rows() -> Iterator[str]:
    """Yield the rows of the page's table of checkers."""
    yield from ("| `data_source` | reward | difference |", "|---|---|---|")
    yield from (f"| `{source}` | `{each.table['kind']}` | {each.note} |" for source, each in CHECKERS.items())
    yield from (f"| `{source}` | refused | {why} |" for source, why in NO_CHECKER.items())


def _rows(values: Values) -> Sequence[Mapping[str, Any]]:
    """Return the training rows; none where the files cannot be read here: a run says what is wrong with them."""
    files = paths(values["data.train_files"], values)
    try:
        return Files(path=tuple(files) if isinstance(files, list) else files).read(None)[0].items
    except (DataError, OSError):
        return ()


def _sources(values: Values) -> list[str]:
    """Return the different values of the rows' `data_source`, sorted. Raises ConfigError: a row has none."""
    column = values["data.reward_fn_key"]
    found = {source if isinstance(source := row.get(column), str) else None for row in _rows(values)}
    if None in found:
        raise ConfigError(f"a row has no text in column {shown(column)}, by which verl picks a reward; {A_FUNCTION}")
    return sorted(str(source) for source in found)


def _function(values: Values) -> str | None:
    found = either(values, f"{OLD}.path", f"{NEW}.path")
    return None if found is None else str(found)


def _name(values: Values) -> str:
    return str(either(values, f"{OLD}.name", f"{NEW}.name"))


def _by_model(values: Values) -> bool:
    return bool(either(values, "reward_model.enable", "reward.reward_model.enable"))


def checker_notes(values: Values) -> list[str]:
    """Return for each source of the rows its checker, and how that differs from verl's; none with a function."""
    if _function(values) is not None or _by_model(values):
        return []
    found = {source: checker_of(source) for source in _sources(values)}
    return [f"{source}: {checker.table['kind']}, {checker.note}" for source, checker in found.items()]


def by_source(column: str, values: Values) -> dict[str, Any]:
    """Return the reward of the rows' sources, and the columns that rewards get by another name."""
    renamed = {"data_source": column} if column != "data_source" else {}
    if _function(values) is not None or _by_model(values):
        return {"data.columns": renamed} if renamed else {}
    sources, usual = _sources(values), {"kind": "math"}
    tables = [dict(checker_of(source).table) for source in sources] or [usual]
    if len({table.get("weight") for table in tables}) > 1:
        raise ConfigError(f"rows of {', '.join(sources)} have different rewards (0, 1 or -1, 1) in verl; {A_FUNCTION}")
    chosen = tables[0] if all(table == tables[0] for table in tables) else usual
    if any("answer" in row for row in _rows(values)):  # else oncurve takes the ground truth by itself
        renamed |= {"answer": "reward_model.ground_truth"}
    return {MANY: [chosen]} | ({"data.columns": renamed} if renamed else {})


def reward_function(_: Any, values: Values) -> dict[str, Any]:
    """Return the reward of the user's function."""
    found = _function(values)
    if found is None:
        return {}
    if _by_model(values):
        raise ConfigError("a function next to a reward model would ask verl's server for it; give one of the two")
    package, _, module = found.partition("://")
    file = module if package in ("pkg", "file") else local(found)
    if advantage(values) == "gdpo":
        return {MANY: _parts(str(Path(file).absolute()) if file.endswith(".py") else file, values)}
    kwargs = either(values, f"{OLD}.reward_kwargs", f"{NEW}.reward_kwargs")
    return {MANY: [{"kind": "python", "path": f"{file}:{_name(values)}"} | ({"kwargs": kwargs} if kwargs else {})]}


def _parts(file: str, values: Values) -> list[dict[str, Any]]:
    """Return a reward per part of the score. Raises ConfigError: gdpo is not told them, or not as many weights."""
    names, weights = values["algorithm.gdpo_reward_keys"], values["algorithm.gdpo_reward_weights"]
    if not names or len(weights or names) != len(names):
        raise ConfigError("gdpo needs algorithm.gdpo_reward_keys, the parts of the score, and as many weights")
    path, function = "oncurve.compat.verl.components:part_of_score", f"{file}:{_name(values)}"
    return [
        {"kind": "python", "path": path, "name": name, "weight": weight, "kwargs": {"function": function, "part": name}}
        for name, weight in zip(names, weights or [1.0] * len(names), strict=True)
    ]


def reward_parts(names: Any, values: Values) -> None:
    """Raise ConfigError: gdpo has no function that returns the parts."""
    if advantage(values) == "gdpo" and _function(values) is None:
        raise ConfigError(f"gdpo needs a function that returns them; {A_FUNCTION}")


def reward_model(_: Any, values: Values) -> dict[str, Any]:
    """Return the reward of the model."""
    found = either(values, *MODELS)
    return {MANY: [{"kind": "model", "path": local(found)}]} if _by_model(values) and found is not None else {}


def reward_model_enabled(enabled: bool | None, values: Values) -> None:
    """Raise ConfigError where a reward model is enabled and not named."""
    if enabled and either(values, *MODELS) is None:
        raise ConfigError("names no reward model; give reward.reward_model.model_path")


def overlong(enabled: bool, values: Values) -> dict[str, Any]:
    """Return the punishment of long completions that verl's reward manager dapo adds."""
    if not enabled:
        return {}
    manager = either(values, "reward_model.reward_manager", "reward.reward_manager.name")
    length = either(values, *(f"{buffer}.len" for buffer in BUFFERS))
    if manager != "dapo":
        raise ConfigError(f"the reward manager {manager} does not read it; set reward_model.reward_manager=dapo")
    if length is None:
        raise ConfigError("names no length; give overlong_buffer_cfg.len next to it")
    factor = either(values, *(f"{buffer}.penalty_factor" for buffer in BUFFERS))
    longest = either(values, *(f"{name}.max_resp_len" for name in SETS))
    table = {"kind": "overlong", "buffer": length, "weight": 1.0 if factor is None else float(factor)}
    made: dict[str, Any] = {MANY: [table | ({} if longest is None else {"max_length": longest})]}
    return made | ({"eval.verifier": _name(values)} if _function(values) is not None else {})
