"""Functions of verl's tables: advantages, where the KL counts, objective, aggregation, dynamic sampling, correction.

Each is `(value, values)` as `oncurve.compat.dialect` has it, and raises ConfigError for what cannot be.
"""

import math
import tomllib
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Values, meaning

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))


def made(values: Values, name: str) -> Any:
    """Return the settings that another key becomes. Raises ConfigError."""
    return values.keys_of[name].settings(values[name], values)


def is_given(values: Values, *names: str) -> bool:
    """Return whether one of them was given with a value that is not null."""
    return any(values.given(name) and values[name] is not None for name in names)


def either(values: Values, *names: str) -> Any:
    """Return the first of several names' values that was given, else the default of the last."""
    return next((values[name] for name in names if is_given(values, name)), values[names[-1]])


def minibatches(_: Any, values: Values) -> int:
    """Return how many minibatches a step has. Raises ConfigError: they are not whole, which verl refuses too."""
    batch, each = values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]
    if not isinstance(batch, int) or not isinstance(each, int) or batch < 1 or each < 1:
        raise ConfigError(f"expected numbers of prompts above 0, got {shown(each)} of {shown(batch)}")
    if batch % each:
        raise ConfigError(f"data.train_batch_size={batch}: not whole minibatches of {each}; give a divisor of {batch}")
    return batch // each


def updates_per_step(values: Values) -> int:
    """Return the optimizer's updates of one step of verl: minibatches times epochs. Raises ConfigError."""
    return minibatches(None, values) * int(values[f"{ACTOR}.ppo_epochs"])


def local(given: Any) -> str:
    """Return a path as it is. Raises ConfigError: a text that names no file of this machine, such as HDFS."""
    if not isinstance(given, str) or not given:
        raise ConfigError(f"expected a path, got {shown(given)}")
    scheme, colon, _ = given.partition("://")
    if colon:
        raise ConfigError(f"{scheme}://: files are read from this machine; copy it here and give its path")
    return given


CORRECTION = "algorithm.rollout_correction"


def advantage(values: Values) -> str:
    """Return our kind of advantage. Raises ConfigError."""
    return str(made(values, "algorithm.adv_estimator")["advantage.kind"])


def of_gae(value: Any, values: Values) -> Any:
    return value if advantage(values) == "gae" else None


def of_discounted(value: Any, values: Values) -> Any:
    return value if advantage(values) in ("gae", "reinforce_pp") else None


def scale(scaled: bool, values: Values) -> str | None:
    if advantage(values) == "gdpo" and not scaled:
        raise ConfigError("gdpo divides each reward by its standard deviation; leave it out, or set it to True")
    return ("group" if scaled else "none") if advantage(values) in ("grpo", "passk") else None


BOTH_KL = (
    f"algorithm.use_kl_in_reward and {ACTOR}.use_kl_loss are both True: the KL penalty counts in the reward or in the "
    "loss; set one of them to False"
)


def in_loss(values: Values) -> bool:
    """Return whether the loss has a KL term, whose coefficient is not 0."""
    return bool(values[f"{ACTOR}.use_kl_loss"] and values[f"{ACTOR}.kl_loss_coef"])


def in_reward(values: Values) -> bool:
    """Return whether the reward has a KL penalty, whose coefficient is not 0."""
    return bool(values["algorithm.use_kl_in_reward"] and values["algorithm.kl_ctrl.kl_coef"])


def use_kl_in_reward(used: bool, values: Values) -> str | None:
    if used and values[f"{ACTOR}.use_kl_loss"]:
        raise ConfigError(BOTH_KL)
    return "reward" if in_reward(values) else None


def use_kl_loss(used: bool, values: Values) -> dict[str, Any]:
    if used and values["algorithm.use_kl_in_reward"]:
        raise ConfigError(BOTH_KL)
    if used:
        return {"kl.where": "loss"} if in_loss(values) else {}
    return {} if values["algorithm.use_kl_in_reward"] else {"kl.coef": 0.0}


def kl_loss_type(kind: Any, values: Values) -> str | None:
    estimator = str(meaning(kind, WORDS["estimators"]))
    return estimator if in_loss(values) else None


def kl_penalty(kind: Any, values: Values) -> None:
    estimator = meaning(kind, WORDS["estimators"])
    if values["algorithm.use_kl_in_reward"] and estimator != "k1":
        raise ConfigError(
            f"{kind}: not available here: in the reward the KL is the difference of the log-probs (kl); others are for "
            f"the loss: {ACTOR}.use_kl_loss=True with {ACTOR}.kl_loss_type"
        )


def of_adaptive(value: Any, values: Values) -> Any:
    return value if values["algorithm.kl_ctrl.type"] == "adaptive" and in_reward(values) else None


def kl_control(kind: Any, values: Values) -> dict[str, Any]:
    meaning(kind, {"fixed": "", "adaptive": ""})
    target, horizon = values["algorithm.kl_ctrl.target_kl"], values["algorithm.kl_ctrl.horizon"]
    return {"kl.target": target, "kl.horizon": horizon} if of_adaptive(True, values) else {}


def filter_metric(name: str | None, values: Values) -> None:
    if name is not None and values["algorithm.filter_groups.enable"]:
        meaning(name, dict.fromkeys(("acc", "score", "reward", "seq_reward", "seq_final_reward")))


def rounds(count: int, values: Values) -> int | None:
    if not values["algorithm.filter_groups.enable"]:
        return None
    return count if count > 0 else 10_000


def correction_threshold(threshold: Any, values: Values) -> None:
    _bounds(threshold)


def correction(level: Any, values: Values) -> dict[str, Any]:
    if level is None:
        return {}
    meaning(level, {"token": "", "sequence": ""})
    if values[f"{CORRECTION}.bypass_mode"]:
        raise ConfigError(f"{CORRECTION}.bypass_mode=True takes the sampler's log-probs as old ones: all weights are 1")
    lower, upper = _bounds(values[f"{CORRECTION}.rollout_is_threshold"])
    kind = {"correction.kind": "truncated" if lower is None else "masked", "correction.level": level}
    return kind | {"correction.threshold": upper} | ({} if lower is None else {"correction.threshold_lower": lower})


def rejection(kind: Any, values: Values) -> None:
    if kind is not None and values[f"{CORRECTION}.bypass_mode"]:
        raise ConfigError("with bypass_mode completions would be rejected from update to update; leave it out")


def _bounds(threshold: Any) -> tuple[float | None, float]:
    """Return the bounds of a threshold: a number, or `"lower_upper"`. Raises ConfigError."""
    parts = threshold.split("_") if isinstance(threshold, str) else [threshold]
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    good = len(numbers) in (1, 2) and not isinstance(threshold, bool)
    if not good or not all(math.isfinite(each) and each > 0 for each in numbers):
        raise ConfigError(f"expected a number above 0, or two like 0.5_2.0, got {shown(threshold)}")
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]


def bypass_mode(bypassed: bool, values: Values) -> str | None:
    return "rollout" if bypassed and updates_per_step(values) > 1 else None


def importance_cap(cap: float, values: Values) -> dict[str, Any]:
    made = {"correction.kind": "truncated", "correction.level": "token", "correction.threshold": cap}
    return made if cap > 0 else {}


def objective(values: Values) -> str:
    """Return our kind of objective. Raises ConfigError."""
    return str(made(values, f"{ACTOR}.policy_loss.loss_mode")["objective.kind"])


def of_sapo(value: float, values: Values) -> float | None:
    return value if objective(values) == "sapo" else None


def clip_ratio(_: Any, values: Values) -> dict[str, Any]:
    sides = [side for side in ("low", "high") if not is_given(values, f"{ACTOR}.clip_ratio_{side}")]
    return {name: bound for side in sides for name, bound in clip_side(None, values, side).items()}


def clip_side(_: Any, values: Values, of: str) -> dict[str, Any]:
    """Return a side's ε: its own, else clip_ratio, else 0.2, which is oncurve's default, too."""
    names = {each: f"{ACTOR}.clip_ratio_{each}" for each in ("low", "high")}
    both = values[f"{ACTOR}.clip_ratio"]
    bounds = {each: values[name] if is_given(values, name) else both for each, name in names.items()}
    kind, bound = objective(values), bounds[of]
    if kind == "dppo":
        if bounds["low"] != bounds["high"]:
            raise ConfigError(f"dppo has one bound for both directions, got {bounds['low']} and {bounds['high']}")
        return {"objective.delta": bound}
    usual = kind == "clipped" and bound == 0.2 and not is_given(values, f"{ACTOR}.clip_ratio", *names.values())
    return {f"objective.clip_{of}": bound} if kind in ("clipped", "gspo", "gmpo", "cispo") and not usual else {}


def dual_clip(bound: float, values: Values) -> dict[str, Any]:
    name = {"clipped": "objective.dual_clip", "dppo": "objective.max_ratio"}.get(objective(values))
    return {} if name is None else {name: bound}


OF_COMPLETIONS = "seq-mean-token-mean"
"""The aggregation of verl's gspo, sapo and geo_mean, whatever loss_agg_mode says."""


def loss_agg_mode(mode: Any, values: Values) -> dict[str, Any]:
    meaning(mode, WORDS["aggregations"])
    if objective(values) not in ("gspo", "sapo", "gmpo"):
        return {"aggregation.kind": mode} if is_given(values, f"{ACTOR}.loss_agg_mode") else {}
    if mode == OF_COMPLETIONS:
        return {}
    terms = {"kl": in_loss(values), "entropy": bool(values[f"{ACTOR}.entropy_coeff"])}
    return {f"{term}.aggregation": mode for term, there in terms.items() if there}


def loss_scale_factor(length: float | None, values: Values) -> int | None:
    if length is None or values[f"{ACTOR}.loss_agg_mode"] != "seq-mean-token-sum-norm":
        return None
    if not math.isfinite(length) or length != int(length):
        raise ConfigError(f"expected a whole number of tokens, got {shown(length)}")
    return int(length)
