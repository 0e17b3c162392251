"""verl's rewards: a function of the user's, a reward model, or the checker that verl chooses by `data_source`.

verl has two names for most of these settings, `reward.*` and the older `custom_reward_function.*` and `reward_model.*`.
Without a function and without a reward model it looks at the column `data_source` of each row; `CHECKERS` has what that
is here. The files are read for it where they are there; what they name decides the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncurve.base.errors import ConfigError, DataError, shown
from oncurve.compat.dialect import MANY, Key, Values
from oncurve.compat.verl.rows import (
    MODEL,
    NUMBER,
    OR_NONE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    either,
    local,
    locals_of,
    meaning,
    refused,
)
from oncurve.data import Files

OLD, NEW = "custom_reward_function", "reward.custom_reward_function"
MANAGERS = dict.fromkeys(("naive", "dapo", "prime", "limited", "remote", "gdpo"), "")
NO_MANAGER = {"batch": "its functions take whole batches in verl's form; write one for a completion, or in TRL's form"}
A_FUNCTION = f"give a function of yours: {NEW}.path=rewards.py, which defines compute_score"


@dataclass(frozen=True)
class Checker:
    """A reward of ours for rows of one source: its table, and how its values differ from verl's."""

    table: Mapping[str, Any]
    note: str


NUMERIC = Checker(
    {"kind": "numeric", "unmarked": False},
    "a marked number (#### or \\boxed{}), compared as a number; verl takes #### alone, and compares the text",
)
MATH = Checker({"kind": "math"}, "compared mathematically, where verl compares normalised text")
SIGNED = Checker(
    {"kind": "math", "weight": 2.0},
    "0 and 2, where verl has -1 and 1: the same for advantages relative to a group",
)
CHECKERS = {"openai/gsm8k": NUMERIC}
CHECKERS |= dict.fromkeys(("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"), MATH)
CHECKERS |= {
    f"numina_{name}": MATH
    for name in ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
}
CHECKERS |= dict.fromkeys(("math_dapo", "math", "math_dapo_reasoning"), SIGNED)
NO_CHECKER = dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "oncurve runs no programs of a completion")
NO_CHECKER |= {"hiyouga/geometry3k": "its rows have images"}
NO_CHECKER |= {
    f"searchR1_{name}": "its completions search the web"
    for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
}


def checker_of(source: str) -> Checker:
    """The checker of a source of rows. Raises ConfigError: verl has none for it, or oncurve has none."""
    found = SIGNED if source.startswith("aime") else CHECKERS.get(source)
    if found is None:
        why = NO_CHECKER.get(source, "verl has no reward for it either")
        raise ConfigError(f"rows of {shown(source)} have no checker here: {why}; {A_FUNCTION}")
    return found


def _rows(values: Values) -> Sequence[Mapping[str, Any]]:
    """The training rows; none where the files cannot be read here: a run says what is wrong with them."""
    paths = locals_of(values["data.train_files"])
    try:
        return Files(path=tuple(paths) if isinstance(paths, list) else paths).read(None)[0].items
    except (DataError, OSError):
        return ()


def sources_of(values: Values) -> list[str]:
    """The different values of the rows' `data_source`, sorted; none where the files cannot be read here.

    Raises ConfigError: the rows have no such column.
    """
    column = values["data.reward_fn_key"]
    found = {source if isinstance(source := row.get(column), str) else None for row in _rows(values)}
    if None in found:
        raise ConfigError(
            f"a row has no text in the column {shown(column)}, by which verl chooses a reward; {A_FUNCTION}"
        )
    return sorted(str(source) for source in found)


def function_of(values: Values) -> str | None:
    """The file of the user's function; None: there is none."""
    path = either(values, f"{OLD}.path", f"{NEW}.path")
    return None if path is None else str(path)


def by_model(values: Values) -> bool:
    """Whether a reward model scores."""
    return bool(either(values, "reward_model.enable", "reward.reward_model.enable"))


def checker_notes(values: Values) -> list[str]:
    """For each source of the rows its checker, and how that differs from verl's; none where a function scores."""
    if function_of(values) is not None or by_model(values):
        return []
    found = {source: checker_of(source) for source in sources_of(values)}
    return [f"{source}: {checker.table['kind']}, {checker.note}" for source, checker in found.items()]


def _by_source(column: Any, values: Values) -> dict[str, Any]:
    renamed = {"data_source": column} if column != "data_source" else {}
    if function_of(values) is not None or by_model(values):
        return {"data.columns": renamed} if renamed else {}
    sources = sources_of(values)
    checkers = [checker_of(source) for source in sources] or [MATH]
    if SIGNED in checkers and any(checker is not SIGNED for checker in checkers):
        raise ConfigError(
            f"rows of {', '.join(sources)} have different rewards, 0 and 1 or -1 and 1, in verl; {A_FUNCTION}"
        )
    chosen = checkers[0] if all(checker is checkers[0] for checker in checkers) else MATH
    if any("answer" in row for row in _rows(values)):  # else oncurve takes the ground truth by itself
        renamed |= {"answer": "reward_model.ground_truth"}
    return {MANY: [dict(chosen.table)]} | ({"data.columns": renamed} if renamed else {})


def _function(_: Any, values: Values) -> dict[str, Any]:
    path = function_of(values)
    if path is None:
        return {}
    if by_model(values):
        raise ConfigError("a function next to a reward model would ask verl's server for it; give one of the two")
    package, _, module = path.partition("://")
    file = module if package in ("pkg", "file") else local(path)
    name, kwargs = _name(values), either(values, f"{OLD}.reward_kwargs", f"{NEW}.reward_kwargs")
    return {MANY: [{"kind": "python", "path": f"{file}:{name}"} | ({"kwargs": kwargs} if kwargs else {})]}


def _name(values: Values) -> str:
    return str(either(values, f"{OLD}.name", f"{NEW}.name"))


def _model(_: Any, values: Values) -> dict[str, Any]:
    path = either(values, "reward_model.model.path", "reward.reward_model.model_path")
    if not by_model(values) or path is None:
        return {}
    return {MANY: [{"kind": "model", "path": local(path)}]}


def _enabled(enabled: Any, values: Values) -> dict[str, Any]:
    path = either(values, "reward_model.model.path", "reward.reward_model.model_path")
    if enabled and path is None:
        raise ConfigError("names no reward model; give reward.reward_model.model_path")
    return {}


def _input_tokenizer(path: Any, values: Values) -> dict[str, Any]:
    if path not in (None, values[f"{MODEL}.path"]):
        raise ConfigError(f"the policy's tokenizer is that of {MODEL}.path; leave it out, got {shown(path)}")
    return {}


def _part(value: Any, values: Values) -> dict[str, Any]:
    return {}


def _manager(name: Any, values: Values) -> dict[str, Any]:
    if name is not None:
        meaning(name, MANAGERS, NO_MANAGER)
    return {}


SETS = ("reward.reward_kwargs", "reward_model.reward_kwargs")
BUFFERS = (*(f"{name}.overlong_buffer_cfg" for name in SETS), "reward_model.overlong_buffer")


def _overlong(enabled: Any, values: Values) -> dict[str, Any]:
    length = either(values, *(f"{buffer}.len" for buffer in BUFFERS))
    factor = either(values, *(f"{buffer}.penalty_factor" for buffer in BUFFERS))
    manager = either(values, "reward_model.reward_manager", "reward.reward_manager.name")
    if not enabled:
        return {}
    if manager != "dapo":
        raise ConfigError(f"the reward manager {manager} does not read it; set reward_model.reward_manager=dapo")
    if length is None:
        raise ConfigError("names no length; give overlong_buffer_cfg.len next to it")
    longest = either(values, *(f"{name}.max_resp_len" for name in SETS))
    table = {"kind": "overlong", "buffer": length, "weight": 1.0 if factor is None else float(factor)}
    made: dict[str, Any] = {MANY: [table | ({} if longest is None else {"max_length": longest})]}
    return made | ({"eval.verifier": _name(values)} if function_of(values) is not None else {})


def _twice(name: str, ours: str, make: Any, default: Any, types: tuple[type, ...], note: str = "") -> tuple[Key, Key]:
    """The rows of the older name of a function's setting, which is null by default, and of the newer one."""
    return (
        Key(f"{OLD}.{name}", (ours,), note, make, None, False, (*types, *OR_NONE)),
        Key(f"{NEW}.{name}", (ours,), note, make, default, False, (*types, *OR_NONE)),
    )


def _buffer(buffer: str) -> tuple[Key, ...]:
    weight = "the punishment of the longest completion"
    return (
        Key(f"{buffer}.enable", (MANY, "eval.verifier"), 'kind = "overlong"', _overlong, types=YES_OR_NO),
        Key(f"{buffer}.len", ("rewards.buffer",), "of it", _part, types=WHOLE),
        Key(f"{buffer}.penalty_factor", ("rewards.weight",), weight, _part, types=NUMBER),
        Key(f"{buffer}.log", (), "each reward is in the metrics"),
    )


_LENGTH = "the length at which the punishment is whole"

KEYS: tuple[Key, ...] = (
    *_twice("path", MANY, _function, None, TEXT, 'kind = "python": path = "file.py:name"'),
    *_twice("name", "rewards.path", _part, "compute_score", TEXT, "the name after the colon"),
    *_twice("reward_kwargs", "rewards.kwargs", _part, {}, (dict,)),
    Key("reward_model.model.path", (MANY,), 'kind = "model"', _model, types=(*TEXT, *OR_NONE)),
    Key("reward.reward_model.model_path", (MANY,), 'kind = "model"', _model, types=(*TEXT, *OR_NONE)),
    Key("reward_model.enable", ("rewards.kind",), "", _enabled, types=(*YES_OR_NO, *OR_NONE)),
    Key("reward.reward_model.enable", ("rewards.kind",), "", _enabled, False, types=YES_OR_NO),
    Key(
        "data.reward_fn_key",
        (MANY, "data.columns"),
        "verl chooses a reward by the rows' data_source where no function is given; see the table below",
        _by_source,
        default="data_source",
        applied=True,
        types=TEXT,
    ),
    *(key for buffer in BUFFERS for key in _buffer(buffer)),
    *(Key(f"{name}.max_resp_len", ("rewards.max_length",), _LENGTH, _part, types=(*WHOLE, *OR_NONE)) for name in SETS),
    Key("reward_model.reward_manager", (MANY,), "how verl calls a reward: naive, dapo, prime ...", _manager),
    Key("reward.reward_manager.name", (MANY,), "how verl calls a reward: naive, dapo, prime ...", _manager, "naive"),
    refused("reward.reward_manager.source", "a reward manager is code of verl; give a function instead", "register"),
    refused("reward.reward_manager.module.path", "a reward manager is code of verl; give a function instead", None),
    refused(
        "reward_model.reward_loop_source", "a reward manager is code of verl; give a function instead", None, "register"
    ),
    refused("reward_model.reward_loop_module_path", "a reward manager is code of verl; give a function instead", None),
    refused(
        "reward.sandbox_fusion.url", "oncurve runs no programs of a completion; give a function that asks it", None
    ),
    refused("sandbox_fusion.url", "oncurve runs no programs of a completion; give a function that asks it", None),
    refused(
        "reward_model.sandbox_fusion.url",
        "oncurve runs no programs of a completion; give a function that asks it",
        None,
    ),
    Key("reward_model.model.trust_remote_code", (), "a reward model is a sequence classifier of transformers"),
    refused("reward_model.model.external_lib", "no module is imported for it; leave it out", None),
    Key("reward_model.model.input_tokenizer", (), "the policy's; the reward model reads by its own", _input_tokenizer),
)
