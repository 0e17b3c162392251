"""Functions of OpenRLHF's tables: settings that are computed from its flags.

Each is `(value, values)` as `oncurve.compat.tables` has it, and raises ConfigError for what cannot be.
"""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Values
from oncurve.compat.tables import meaning

ESTIMATOR, COEF, CORRECTION = "algo.advantage.estimator", "algo.kl.init_coef", "algo.advantage.is_correction"


def of_gae(value: Any, values: Values) -> Any:
    return value if values[ESTIMATOR] == "gae" else None


def of_discounted(value: float, values: Values) -> float | None:
    return value if values[ESTIMATOR] in ("gae", "reinforce") else None


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
        raise ConfigError(
            f'{shown(file)}: a reward is no service here; write a function in a file, or [[rewards]] "model"'
        )
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


def checkpoints_kept(count: int, values: Values) -> int | None:
    return count if values["ckpt.save_steps"] > 0 else None


def best(metric: str, values: Values) -> str | None:
    return None if metric in ("", "none") else "eval/accuracy"


def eval_every(steps: int, values: Values) -> int | None:
    return max(steps, 0) if values["eval.dataset"] else None


def of_eval(value: Any, values: Values) -> Any:
    return value if values["eval.dataset"] and values["eval.steps"] > 0 else None


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
