"""Our settings for TRL's values of the loss: objective, advantages, KL term, entropy, and what is masked.

The functions that rows of `config.toml` name: `(value, values)` to settings, to the value of one, or to None.
"""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Values
from oncurve.compat.trl.run_keys import WORDS, in_steps, updates_per_step

MEAN = "token-mean"
AGGREGATIONS, MISSING = WORDS["aggregations"], WORDS["missing"]
"""The aggregation of each `loss_type`, and why others are not here."""

EPS = 1e-4
"""What TRL adds to a standard deviation of rewards."""

Made = dict[str, Any]


def objective(value: Any, values: Values) -> str:
    """Return the kind of `[objective]`. Raises ConfigError: TRL has no such loss, or it is not available."""
    name, level = values["loss_type"], values["importance_sampling_level"]
    if name in MISSING:
        raise ConfigError(f"loss_type={name!r}: {MISSING[name]}; docs/extending.md shows how an objective is added")
    if name not in AGGREGATIONS:
        raise ConfigError(f"TRL has no loss_type {shown(name)}{suggest(str(name), (*AGGREGATIONS, *MISSING))}")
    if level not in ("token", "sequence"):
        raise ConfigError(f"importance_sampling_level is 'token' or 'sequence', got {shown(level)}")
    if name in ("cispo", "sapo"):
        if level == "sequence":
            raise ConfigError(f"loss_type={name!r} is defined by the ratio of each token; leave 'sequence' out")
        return str(name)
    return "gspo" if level == "sequence" else "clipped"


def loss(value: Any, values: Values) -> Made:
    """Return objective and aggregation."""
    return {"objective.kind": objective(value, values), "aggregation.kind": AGGREGATIONS[value]}


def epsilon(value: Any, values: Values) -> Made:
    """Return the lower bound, and without `epsilon_high` the upper one, too."""
    kind = objective(value, values)
    if kind in ("cispo", "sapo") or (kind == "clipped" and not values.given("epsilon")):
        return {}
    high = {} if values["epsilon_high"] is not None else {"objective.clip_high": value}
    return {"objective.clip_low": value, **high}


def epsilon_high(value: Any, values: Values) -> Made:
    """Return the upper bound, which is the largest weight itself in CISPO."""
    kind = objective(value, values)
    if kind == "cispo":
        bound = values["epsilon"] if value is None else value
        return {"objective.clip_low": 1.0, "objective.clip_high": bound - 1.0}
    return {} if value is None or kind == "sapo" else {"objective.clip_high": value}


def delta(value: Any, values: Values) -> Any:
    """Return the bound of the ratio, where the objective has one."""
    return None if objective(value, values) in ("cispo", "sapo") else value


def sapo_temperature(value: Any, values: Values) -> Any:
    """Return a temperature of SAPO."""
    return value if objective(value, values) == "sapo" else None


def scale(value: Any, values: Values) -> Made:
    """Return how advantages are scaled."""
    word = {True: "group", False: "none"}.get(value, value)
    if word not in ("group", "batch", "none"):
        raise ConfigError(f"expected 'group', 'batch' or 'none', got {shown(value)}")
    if values["multi_objective_aggregation"] == "normalize_then_sum":
        return {}
    return {"advantage.scale": word, **({} if word == "none" else {"advantage.eps": EPS})}


def several_rewards(value: Any, values: Values) -> Made:
    """Return the advantage: of the sum of the rewards, or the sum of one per reward (GDPO)."""
    if value not in ("sum_then_normalize", "normalize_then_sum"):
        raise ConfigError(f"expected 'sum_then_normalize' or 'normalize_then_sum', got {shown(value)}")
    if value == "sum_then_normalize":
        return {"advantage.kind": "grpo"} if values.given("multi_objective_aggregation") else {}
    return {"advantage.kind": "gdpo", "advantage.eps": EPS}


def estimator(value: Any, values: Values) -> str | None:
    """Return the estimator of the KL term, where there is one."""
    return ("ratio_k3" if value else "k3") if values["beta"] else None


def reference(value: Any, values: Values) -> Made:
    """Return how the reference follows the policy. Raises ConfigError: there is none."""
    if not value:
        return {}
    if not values["beta"]:
        raise ConfigError("with beta=0.0 there is no reference that could follow; give beta, or leave it out")
    return {
        "reference.every": in_steps(values["ref_model_sync_steps"], values),
        "reference.mixup_alpha": values["ref_model_mixup_alpha"],
    }


def _check_bonus(values: Values) -> None:
    """Raise ConfigError: TRL's bonus would leave tokens out."""
    if values["top_entropy_quantile"] < 1:
        raise ConfigError("with top_entropy_quantile below 1 TRL's bonus leaves tokens out, and the one here does not")


def _mean(values: Values) -> Made:
    """Return the aggregation of the bonus, which is a mean over tokens with every loss."""
    return {} if AGGREGATIONS.get(values["loss_type"], MEAN) == MEAN else {"entropy.aggregation": MEAN}


def bonus(value: Any, values: Values) -> Made:
    """Return the coefficient of the entropy bonus."""
    if value:
        _check_bonus(values)
    return {"entropy.coef": value, **(_mean(values) if value else {})}


def adaptive_bonus(value: Any, values: Values) -> Made:
    """Return how the coefficient follows a target."""
    if not value:
        return {}
    _check_bonus(values)
    return {"entropy.target": values["entropy_target"], "entropy.step": values["entropy_coef_delta"], **_mean(values)}


def off_policy(value: Any, values: Values) -> Any:
    """Return the threshold, where a step has several updates."""
    return None if updates_per_step(values) == 1 else value
