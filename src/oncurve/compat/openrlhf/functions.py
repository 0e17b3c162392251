"""OpenRLHF's flags, their translation, and the functions of its tables: settings that are computed from flags.

Each function is `(value, values)` as `oncurve.compat.dialect` has it, and raises ConfigError for what cannot be.

Covered: every flag of 0.11, and the flat names that releases before had (`--pretrain`). Not covered: what is not a
flag, such as DeepSpeed's files or an agent's code.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, noted, refuse, shown, suggest
from oncurve.compat.dialect import Dialect, Key, Said, Translation, Values, keys_of, meaning, placed

ESTIMATOR, COEF, CORRECTION = "algo.advantage.estimator", "algo.kl.init_coef", "algo.advantage.is_correction"


def freezing_steps(steps: int, values: Values) -> int | None:
    return max(steps, 0) if values[ESTIMATOR] == "gae" else None


def _positive(name: str, values: Values) -> int:
    if not isinstance(values[name], int) or isinstance(values[name], bool) or values[name] < 1:
        raise ConfigError(f"{name} is {shown(values[name])}, and must be a whole number above 0")
    return int(values[name])


def minibatches(_: int, values: Values) -> int:
    group, prompts = _positive("rollout.n_samples_per_prompt", values), _positive("rollout.batch_size", values)
    batch = _positive("train.batch_size", values)
    if batch % group or prompts * group % batch:
        raise ConfigError(
            f"{prompts} prompts with {group} completions each cannot be divided into updates of {batch} completions "
            f"of whole groups; give --train.batch_size {group * prompts} for one update"
        )
    return prompts * group // batch


def kl_where(in_loss: bool, values: Values) -> str | None:
    return None if values[COEF] == 0 else "loss" if in_loss else "reward"


def kl_estimator(kind: str, values: Values) -> str | None:
    meaning(kind, dict.fromkeys(("k1", "k2", "k3")))
    if values[COEF] == 0:
        return None
    if values["algo.kl.use_loss"]:
        return "ratio_k3" if values["algo.kl.unbiased_gradient"] else kind
    if kind != "k1":
        raise ConfigError(f"{kind} in the reward is not here; give k1, or --algo.kl.use_loss")
    return None


def aggregation(mode: str, values: Values) -> dict[str, Any]:
    if values["actor.policy_loss_type"] != "gspo":
        return {"aggregation.kind": mode}
    terms = {"kl": values[COEF] != 0 and values["algo.kl.use_loss"], "entropy": values["actor.entropy_coef"]}
    own = {f"{term}.aggregation": mode for term, there in terms.items() if there}
    return {"aggregation.kind": "seq-mean-token-mean", **own}


def clips(bounds: list[float], values: Values) -> dict[str, Any]:
    return {"objective.clip_low": bounds[0], "objective.clip_high": bounds[1]}


def eps_clip(bound: float, values: Values) -> dict[str, Any]:
    return {} if values.given("actor.eps_clip_low_high") else clips([bound, bound], values)


def lengths(longest: int, values: Values) -> dict[str, Any]:
    new = values["rollout.max_new_tokens"]
    if new is None:
        return {"rollout.max_new_tokens": longest}
    if not values.given("data.max_len"):
        return {}
    if isinstance(new, int) and longest - new < 1:
        raise ConfigError(f"{longest} leaves no room for a prompt next to {new} new tokens")
    return {} if values.given("prompt_max_len") else {"data.max_prompt_tokens": longest - new}


def reward_models(names: str, values: Values) -> dict[str, Any]:
    return {"rewards": [{"kind": "model", "path": name} for name in names.split(",")]} if names.strip() else {}


def reward_function(file: str, values: Values) -> dict[str, Any]:
    if not file.endswith(".py"):
        raise ConfigError(f"{shown(file)}: a reward is no service here; give a function in a file, or kind = 'model'")
    return {"rewards": [{"kind": "python", "path": f"{file}:reward_func"}]}


def overlong(length: float, values: Values) -> dict[str, Any]:
    if length != int(length) or length < 1:
        raise ConfigError(f"expected a whole number above 0, got {shown(length)}")
    weight = values["reward.overlong_penalty_factor"]
    return {"rewards": [{"kind": "overlong", "buffer": int(length), "weight": weight}]}


def normalized(used: bool, values: Values) -> None:
    if used and values[ESTIMATOR] not in ("group_norm", "reinforce_baseline"):
        raise ConfigError("rewards are not normalised by running statistics; scale them by a weight in [[rewards]]")


def entries(names: str, values: Values) -> str | list[str]:
    listed = [part.strip() for part in names.split(",")]
    return listed[0] if len(listed) == 1 else listed


def weights(numbers: str, values: Values) -> list[float]:
    try:
        return [float(part) for part in numbers.split(",")]
    except ValueError:
        raise ConfigError(f"expected numbers with commas between them, got {shown(numbers)}") from None


def label_column(name: str, values: Values) -> dict[str, Any]:
    return {"data.columns": {"label": name}}


def template(text: str, values: Values) -> str:
    parts = [part.replace("{", "{{").replace("}", "}}") for part in text.split("{}")]
    if len(parts) != 2:
        raise ConfigError(f'expected "{{}}" once, where the prompt goes, got {shown(text)}')
    return parts[0] + "{" + str(values["data.input_key"]) + "}" + parts[1]


def prompt_column(name: str, values: Values) -> str | None:
    return None if values.given("data.input_template") else name


def best(metric: str, values: Values) -> str | None:
    return None if metric in ("", "none") else "eval/accuracy"


def eval_every(steps: int, values: Values) -> int | None:
    return max(steps, 0) if values["eval.dataset"] else None


def correction(level: str, values: Values) -> dict[str, Any]:
    kind = meaning(values[f"{CORRECTION}_mode"], {"mask": "masked", "clip": "truncated"})
    ours = meaning(level, {"off": None, "token": "token", "seq": "geometric"})
    return _bounded(ours, kind, values) if ours else {}


def correction_by_type(_: bool, values: Values) -> dict[str, Any]:
    kinds = {"tis": ("token", "truncated"), "icepop": ("token", "masked"), "seq-mask-tis": ("geometric", "masked")}
    level, kind = meaning(values[f"{CORRECTION}_type"], kinds)
    return _bounded(level, kind, values)


def _bounded(level: str, kind: str, values: Values) -> dict[str, Any]:
    bounds = values[f"{CORRECTION}_threshold"]
    low, high = bounds if len(bounds) == 2 else (0.0, *bounds[:1])
    lower = {"correction.threshold_lower": low} if kind == "masked" else {}
    return {"correction.kind": kind, "correction.level": level, "correction.threshold": high} | lower


def wandb(_: str, values: Values) -> list[str]:
    return ["wandb", "tensorboard"] if values["logger.tensorboard_dir"] else ["wandb"]


def tensorboard(_: str, values: Values) -> list[str] | None:
    return None if values["logger.wandb.key"] else ["tensorboard"]


HERE = Path(__file__).parent
TABLES = ("keys", "unused")
DIALECT = Dialect(
    "OpenRLHF", "0.11", tuple(key for name in TABLES for key in keys_of(HERE / f"{name}.toml", globals()))
)
_NAMES = tomllib.loads((HERE / "names.toml").read_text(encoding="utf-8"))
RENAMED: dict[str, str] = _NAMES["renamed"]
"""The flat names of releases before 0.10, to those of 0.11."""
SHORTHANDS: dict[str, dict[str, Any]] = _NAMES["shorthands"]
"""Flags of earlier releases that stand for others with a value."""

ABOUT = (HERE / "about.md").read_text(encoding="utf-8") + "\n".join(
    f"* `--{old}`: `--{new}`" for old, new in sorted(RENAMED.items()) if new.replace(".", "_") != old
)
"""The text of the page "Coming from another tool" before the table of flags, which has the names of 0.11."""


def from_openrlhf(words: Sequence[str]) -> Translation:
    """Return the settings of flags. Raises ConfigError: one is unknown, refused, without value or of a wrong type."""
    if not words:
        raise ConfigError("give OpenRLHF's flags, like --actor.model_name_or_path MODEL")
    if words[0].endswith(".sh"):
        raise ConfigError(
            f"{words[0]}: scripts are not read; write `oncurve config from-openrlhf` in it where `python3 -m "
            "openrlhf.cli.train_ppo_ray` stands, and run it"
        )
    table, said, problems = DIALECT.table, dict[str, Said](), list[str]()
    for flag, values in _flags(words).items():
        with noted(problems, f"{placed(flag)}: "):
            said.update(_said(flag, values, table))
    refuse(problems)
    return DIALECT.translate(said)


def _flags(words: Sequence[str]) -> dict[str, list[str]]:
    """Return each flag with the words up to the next one; of a flag that is given several times the last."""
    flags, stray = dict[str, list[str]](), list[str]()
    values = stray
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            values = flags[RENAMED.get(name, name)] = [value] if equals else []
        else:
            values.append(word)
    if stray:
        raise ConfigError(f"{shown(stray[0])}: expected a flag, like --actor.adam.lr 1e-6")
    return flags


def _said(name: str, values: list[str], table: Mapping[str, Key]) -> dict[str, Said]:
    if name in SHORTHANDS and not values:
        return {setting: Said(value) for setting, value in SHORTHANDS[name].items()}
    if name not in table:
        near = suggest(name, [*table, *RENAMED, *SHORTHANDS])
        raise ConfigError(f"{DIALECT.tool} {DIALECT.version} has no such flag{near}")
    return {name: Said(_value(table[name].types, values, name))}


def _value(types: tuple[type, ...], texts: list[str], name: str) -> Any:
    """Return the value of a flag as argparse reads it. Raises ConfigError: too few words, too many, or no number."""
    if types == (list,):
        few = 1 if name == f"{CORRECTION}_threshold" else 2
        if not few <= len(texts) <= 2:
            raise ConfigError(f"expected two numbers, got {len(texts)} words")
        return [_number(float, text) for text in texts]
    if list in types:
        return texts[0] if texts in (["all-linear"], ["all_linear"]) else texts
    if types == (bool,):
        if texts:
            raise ConfigError(f"a flag without a value, got {shown(texts[0])}")
        return True
    if len(texts) != 1:
        raise ConfigError(f"expected one value, got {len(texts)} words")
    return texts[0] if types == (str,) else _number(types[0], texts[0])


def _number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"expected a {'whole ' if kind is int else ''}number, got {shown(text)}") from None
