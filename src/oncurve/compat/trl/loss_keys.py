"""TRL's settings of the loss: objective, advantages, KL term, entropy, and what is masked."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Key, Values
from oncurve.compat.trl.sizes import in_steps, updates_per_step

MEAN = "token-mean"
AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": MEAN,
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": MEAN,
    "cispo": MEAN,
    "sapo": "seq-mean-token-mean",
}
"""The aggregation of each `loss_type`."""

EPS = 1e-4
"""What TRL adds to a standard deviation of rewards."""

MISSING = {
    "luspo": "LUSPO is not available; its nearest relative is importance_sampling_level='sequence' (GSPO)",
    "vespo": "VESPO is not available; cispo and sapo bound the same weights",
}


def objective(values: Values) -> str:
    """The kind of `[objective]`. Raises ConfigError: TRL has no such loss, or it is not available."""
    loss, level = values["loss_type"], values["importance_sampling_level"]
    if loss in MISSING:
        raise ConfigError(f"loss_type={loss!r}: {MISSING[loss]}; docs/extending.md shows how an objective is added")
    if loss not in AGGREGATIONS:
        raise ConfigError(f"TRL has no loss_type {shown(loss)}{suggest(str(loss), (*AGGREGATIONS, *MISSING))}")
    if level not in ("token", "sequence"):
        raise ConfigError(f"importance_sampling_level is 'token' or 'sequence', got {shown(level)}")
    if loss in ("cispo", "sapo"):
        if level == "sequence":
            raise ConfigError(f"loss_type={loss!r} is defined by the ratio of each token; leave 'sequence' out")
        return str(loss)
    return "gspo" if level == "sequence" else "clipped"


def _loss(value: Any, values: Values) -> dict[str, Any]:
    return {"objective.kind": objective(values), "aggregation.kind": AGGREGATIONS[values["loss_type"]]}


def _level(value: Any, values: Values) -> dict[str, Any]:
    return {"objective.kind": objective(values)}


def _epsilon(value: Any, values: Values) -> dict[str, Any]:
    kind = objective(values)
    if kind in ("cispo", "sapo") or (kind == "clipped" and not values.given("epsilon")):
        return {}
    high = {} if values["epsilon_high"] is not None else {"objective.clip_high": value}
    return {"objective.clip_low": value, **high}


def _epsilon_high(value: Any, values: Values) -> dict[str, Any]:
    kind = objective(values)
    if kind == "cispo":
        bound = values["epsilon"] if value is None else value
        if bound < 1:
            raise ConfigError(
                f"with loss_type='cispo' it is the largest weight of a token, and {bound:g} would shrink the gradient "
                "of every token to that share; write epsilon_high=5.0, the value of ScaleRL"
            )
        return {"objective.clip_low": 1.0, "objective.clip_high": bound - 1.0}
    return {} if value is None or kind == "sapo" else {"objective.clip_high": value}


def _delta(value: Any, values: Values) -> dict[str, Any]:
    return {} if value is None or objective(values) in ("cispo", "sapo") else {"objective.delta": value}


def _tau(name: str) -> Any:
    def make(value: Any, values: Values) -> dict[str, Any]:
        return {name: value} if objective(values) == "sapo" else {}

    return make


def _scale(value: Any, values: Values) -> dict[str, Any]:
    scale = {True: "group", False: "none"}.get(value, value)
    if scale not in ("group", "batch", "none"):
        raise ConfigError(f"expected 'group', 'batch' or 'none', got {shown(value)}")
    if values["multi_objective_aggregation"] == "normalize_then_sum":
        return {}
    return {"advantage.scale": scale, **({} if scale == "none" else {"advantage.eps": EPS})}


def _objectives(value: Any, values: Values) -> dict[str, Any]:
    if value not in ("sum_then_normalize", "normalize_then_sum"):
        raise ConfigError(f"expected 'sum_then_normalize' or 'normalize_then_sum', got {shown(value)}")
    if value == "sum_then_normalize":
        return {"advantage.kind": "grpo"} if values.given("multi_objective_aggregation") else {}
    return {"advantage.kind": "gdpo", "advantage.eps": EPS}


def _bias(value: Any, values: Values) -> dict[str, Any]:
    return {"kl.estimator": "ratio_k3" if value else "k3"} if values["beta"] else {}


def _reference(value: Any, values: Values) -> dict[str, Any]:
    if not value:
        return {}
    if not values["beta"]:
        raise ConfigError("with beta=0.0 there is no reference that could follow; give beta, or leave it out")
    return {
        "reference.every": in_steps(values["ref_model_sync_steps"], values),
        "reference.mixup_alpha": values["ref_model_mixup_alpha"],
    }


def _of_reference(value: Any, values: Values) -> dict[str, Any]:
    return _reference(values["sync_ref_model"], values)


def _check_bonus(values: Values) -> None:
    """Raises ConfigError: the bonus would be weighed otherwise than TRL's, the mean over tokens of every loss."""
    if AGGREGATIONS.get(values["loss_type"], MEAN) != MEAN:
        same = ", ".join(repr(loss) for loss, kind in AGGREGATIONS.items() if kind == MEAN)
        raise ConfigError(
            "TRL's entropy bonus is a mean over tokens with every loss, and here it is weighed as the loss is; choose "
            f"loss_type {same}, where both are the same, or leave the bonus out; got {values['loss_type']!r}"
        )
    if values["top_entropy_quantile"] < 1:
        raise ConfigError("with top_entropy_quantile below 1 TRL's bonus leaves tokens out, and the one here does not")


def _bonus(value: Any, values: Values) -> dict[str, Any]:
    if value:
        _check_bonus(values)
    return {"entropy.coef": value}


def _adaptive(value: Any, values: Values) -> dict[str, Any]:
    if not value:
        return {}
    _check_bonus(values)
    return {"entropy.target": values["entropy_target"], "entropy.step": values["entropy_coef_delta"]}


def _of_entropy(value: Any, values: Values) -> dict[str, Any]:
    return _adaptive(values["use_adaptive_entropy"], values)


def _off_policy(value: Any, values: Values) -> dict[str, Any]:
    return {} if value is None or updates_per_step(values) == 1 else {"filter.off_policy_threshold": value}


BONUS = "with loss_type 'dapo', 'bnpo' and 'cispo', whose mean over tokens TRL's bonus has with every loss"
ENTROPY = "only with use_adaptive_entropy; here the entropy of a step counts from the next one on"
TAU = "only with loss_type='sapo'"
REFERENCE = "only with sync_ref_model; every step here has all updates of one generation"

LOSS_KEYS = (
    Key(
        "loss_type",
        ("objective.kind", "aggregation.kind"),
        "one word for both; bnpo's mean is over all tokens of an update, not over those of each batch",
        _loss,
        default="dapo",
        types=(str,),
    ),
    Key(
        "importance_sampling_level",
        ("objective.kind",),
        "'sequence' is GSPO",
        _level,
        default="token",
        types=(str,),
    ),
    Key(
        "epsilon",
        ("objective.clip_low", "objective.clip_high"),
        "the upper one too, without epsilon_high; no lower bound in cispo or from 1 on, none at all in sapo",
        _epsilon,
        default=0.2,
        applied=True,
        types=(float,),
    ),
    Key(
        "epsilon_high",
        ("objective.clip_high",),
        "of cispo it is the largest weight itself, here 1 + clip_high",
        _epsilon_high,
        applied=True,
        types=(float, type(None)),
    ),
    Key("delta", ("objective.delta",), "not in cispo and sapo", _delta, types=(float, type(None))),
    Key("sapo_temperature_neg", ("objective.tau_negative",), TAU, _tau("objective.tau_negative"), 1.05, types=(float,)),
    Key("sapo_temperature_pos", ("objective.tau_positive",), TAU, _tau("objective.tau_positive"), 1.0, types=(float,)),
    *(
        Key(f"vespo_{name}", (), "VESPO is not available", default=default, refused=True, harmless=(default,))
        for name, default in (("k_pos", 2.0), ("lambda_pos", 3.0), ("k_neg", 3.0), ("lambda_neg", 2.0))
    ),
    Key(
        "scale_rewards",
        ("advantage.scale", "advantage.eps"),
        "TRL adds 1e-4 to the standard deviation; not with normalize_then_sum",
        _scale,
        default="group",
        applied=True,
        types=(bool, str),
    ),
    Key(
        "multi_objective_aggregation",
        ("advantage.kind", "advantage.eps"),
        "normalize_then_sum is GDPO",
        _objectives,
        default="sum_then_normalize",
        types=(str,),
    ),
    Key(
        "reward_weights",
        ("rewards.0.weight",),
        "the weight of each reward of reward_funcs",
        lambda value, values: {},
        types=(list, tuple, type(None)),
    ),
    Key("beta", ("kl.coef",), "0: no KL term", default=0.0, applied=True, types=(float,)),
    Key(
        "use_bias_correction_kl",
        ("kl.estimator",),
        "ratio_k3 is k3 times the ratio of the token; TRL takes that of the completion with 'sequence'",
        _bias,
        default=True,
        applied=True,
        types=(bool,),
    ),
    Key(
        "sync_ref_model",
        ("reference.every", "reference.mixup_alpha"),
        REFERENCE,
        _reference,
        default=False,
        types=(bool,),
    ),
    Key(
        "ref_model_mixup_alpha",
        ("reference.mixup_alpha",),
        REFERENCE,
        _of_reference,
        default=0.6,
        types=(float,),
    ),
    Key("ref_model_sync_steps", ("reference.every",), REFERENCE, _of_reference, default=512, types=(int,)),
    Key(
        "mask_truncated_completions",
        ("filter.mask_truncated",),
        "the mean of grpo, dr_grpo and sapo is then over the trained completions",
        default=False,
        types=(bool,),
    ),
    Key("top_entropy_quantile", ("filter.top_entropy",), default=1.0, types=(float,)),
    Key(
        "off_policy_mask_threshold",
        ("filter.off_policy_threshold",),
        "without effect where a generation has one update",
        _off_policy,
        types=(float, type(None)),
    ),
    Key("entropy_coef", ("entropy.coef",), BONUS, _bonus, default=0.0, types=(float,)),
    Key("use_adaptive_entropy", ("entropy.target", "entropy.step"), ENTROPY, _adaptive, default=False, types=(bool,)),
    Key("entropy_target", ("entropy.target",), ENTROPY, _of_entropy, default=0.2, types=(float,)),
    Key("entropy_coef_delta", ("entropy.step",), ENTROPY, _of_entropy, default=0.005, types=(float,)),
    Key("entropy_coef_min", (), "the least coefficient is 0", default=0.0, refused=True, harmless=(0.0, 0)),
    Key("entropy_coef_max", (), "the coefficient has no largest value", default=1.0, refused=True, harmless=(1.0, 1)),
)
