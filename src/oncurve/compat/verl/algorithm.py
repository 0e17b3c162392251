"""verl's `algorithm.*`: advantages, the KL in the reward, dynamic sampling, correction."""

from __future__ import annotations

import math
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.rows import (
    ACTOR,
    NUMBER,
    OR_NONE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    idle,
    meaning,
    refused,
    updates_per_step,
)

ADVANTAGES = {
    "gae": "gae",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "grpo_passk": "passk",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
}
NO_ADVANTAGE = {
    "remax": "its baseline is the reward of a greedy completion; rloo or grpo have one from the group",
    "gpg": "grpo with algorithm.norm_adv_by_std_in_grpo=False is the same but for a factor per batch",
    "gdpo": 'verl whitens its sums over the tokens of the batch; advantage.kind = "gdpo" divides by their standard '
    "deviation over completions, as the paper does: write it in a recipe, with a [[rewards]] table per reward",
    "optimal_token_baseline": "opo is the optimal baseline per completion",
    "tir_optimal_token_baseline": "opo is the optimal baseline per completion",
}
IN_REWARD = {"kl": "k1", "k1": "k1"}
NOT_IN_REWARD = dict.fromkeys(
    ("abs", "mse", "k2", "low_var_kl", "k3", "full", "k1+", "k2+", "k3+", "kl+", "mse+", "abs+", "low_var_kl+"),
    "in the reward the KL is the difference of the log-probs (kl); others are for the loss: "
    f"{ACTOR}.use_kl_loss=True with {ACTOR}.kl_loss_type",
)
BOTH_KL = (
    f"algorithm.use_kl_in_reward and {ACTOR}.use_kl_loss are both True: the KL penalty counts in the reward or in the "
    "loss; set one of them to False"
)


def advantage(values: Values) -> str:
    """Our kind of advantage. Raises ConfigError."""
    return meaning(values["algorithm.adv_estimator"], ADVANTAGES, NO_ADVANTAGE)


def _advantage(_: Any, values: Values) -> dict[str, Any]:
    kind = advantage(values)
    enabled = values["critic.enable"]
    if enabled is not None and enabled is not (kind == "gae"):
        raise ConfigError(f"critic.enable={enabled}: the critic belongs to gae, and to no other; leave it out")
    return {"advantage.kind": kind} | ({"critic.kind": "own"} if kind == "gae" else {})


def in_loss(values: Values) -> float | None:
    """The coefficient of the KL term of the loss; None: there is none, or it is 0."""
    return (values[f"{ACTOR}.kl_loss_coef"] or None) if values[f"{ACTOR}.use_kl_loss"] else None


def in_reward(values: Values) -> float | None:
    """The coefficient of the KL in the reward; None: there is none, or it is 0."""
    return (values["algorithm.kl_ctrl.kl_coef"] or None) if values["algorithm.use_kl_in_reward"] else None


def _use_kl_in_reward(used: Any, values: Values) -> dict[str, Any]:
    if used and values[f"{ACTOR}.use_kl_loss"]:
        raise ConfigError(BOTH_KL)
    return {"kl.where": "reward"} if in_reward(values) is not None else {}


def _kl_coef(coef: Any, values: Values) -> dict[str, Any]:
    return {"kl.coef": coef} if values["algorithm.use_kl_in_reward"] else {}


def _kl_penalty(kind: Any, values: Values) -> dict[str, Any]:
    if not values["algorithm.use_kl_in_reward"]:
        meaning(kind, IN_REWARD | dict.fromkeys(NOT_IN_REWARD, ""))
        return {}
    meaning(kind, IN_REWARD, NOT_IN_REWARD)
    return {}


def _adapted(values: Values) -> bool:
    return values["algorithm.kl_ctrl.type"] == "adaptive" and in_reward(values) is not None


def _controller(kind: Any, values: Values) -> dict[str, Any]:
    meaning(kind, {"fixed": "", "adaptive": ""})
    target, horizon = values["algorithm.kl_ctrl.target_kl"], values["algorithm.kl_ctrl.horizon"]
    return {"kl.target": target, "kl.horizon": horizon} if _adapted(values) else {}


def _scale(scaled: Any, values: Values) -> dict[str, Any]:
    return {"advantage.scale": "group" if scaled else "none"} if advantage(values) in ("grpo", "passk") else {}


def _if_kind(setting: str, *kinds: str) -> Any:
    return lambda value, values: {setting: value} if advantage(values) in kinds else {}


def _rounds(rounds: Any, values: Values) -> dict[str, Any]:
    if not values["algorithm.filter_groups.enable"]:
        return {}
    return {"filter.max_rounds": rounds if rounds > 0 else 10_000}


METRICS = {"acc": "", "score": "", "reward": "", "seq_reward": "", "seq_final_reward": ""}


def _metric(name: Any, values: Values) -> dict[str, Any]:
    if name is not None and values["algorithm.filter_groups.enable"]:
        meaning(name, METRICS)
    return {}


C = "algorithm.rollout_correction"


def _bounds(threshold: Any) -> tuple[float | None, float]:
    """The bounds of a threshold: a number, or `"lower_upper"`. Raises ConfigError."""
    parts = str(threshold).split("_") if isinstance(threshold, str) else [threshold]
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    good = len(numbers) in (1, 2) and not isinstance(threshold, bool)
    if not good or not all(math.isfinite(each) and each > 0 for each in numbers):
        raise ConfigError(f"expected a number above 0, or two like 0.5_2.0, got {shown(threshold)}")
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]


def _correction(level: Any, values: Values) -> dict[str, Any]:
    if level is None:
        return {}
    meaning(level, {"token": "", "sequence": ""})
    if values[f"{C}.bypass_mode"]:
        raise ConfigError(f"{C}.bypass_mode=True takes the sampler's log-probs as old ones, so all weights are 1")
    lower, upper = _bounds(values[f"{C}.rollout_is_threshold"])
    kind = {"correction.kind": "truncated" if lower is None else "masked", "correction.level": level}
    return kind | {"correction.threshold": upper} | ({} if lower is None else {"correction.threshold_lower": lower})


def _threshold(threshold: Any, values: Values) -> dict[str, Any]:
    _bounds(threshold)
    return {}


def _bypass(bypassed: Any, values: Values) -> dict[str, Any]:
    if not bypassed or updates_per_step(values) == 1:
        return {}
    return {"learner.old_logprobs": "rollout"}


KEYS: tuple[Key, ...] = (
    Key(
        "algorithm.adv_estimator",
        ("advantage.kind", "critic.kind"),
        "gae has a critic, the others have none",
        _advantage,
        default="gae",
        applied=True,
    ),
    Key(
        "algorithm.norm_adv_by_std_in_grpo",
        ("advantage.scale",),
        'True is "group", False "none", of grpo and grpo_passk; the others do not read it',
        _scale,
        default=True,
        types=YES_OR_NO,
    ),
    Key(
        "algorithm.gamma",
        ("advantage.gamma",),
        "of gae and reinforce_plus_plus",
        _if_kind("advantage.gamma", "gae", "reinforce_pp"),
        default=1.0,
        types=NUMBER,
    ),
    Key(
        "algorithm.lam",
        ("advantage.lam",),
        "of gae",
        _if_kind("advantage.lam", "gae"),
        default=1.0,
        applied=True,
        types=NUMBER,
    ),
    Key(
        "algorithm.use_kl_in_reward",
        ("kl.where",),
        'True is "reward"',
        _use_kl_in_reward,
        default=False,
        types=YES_OR_NO,
    ),
    Key(
        "algorithm.kl_penalty",
        ("kl.estimator",),
        "kl (k1) alone is possible in the reward, and it is what oncurve has there; the loss has its own, "
        f"{ACTOR}.kl_loss_type",
        _kl_penalty,
        default="kl",
    ),
    Key(
        "algorithm.kl_ctrl.kl_coef",
        ("kl.coef",),
        "of the KL in the reward; without algorithm.use_kl_in_reward=True verl does not read it",
        _kl_coef,
        default=0.001,
        types=NUMBER,
    ),
    Key(
        "algorithm.kl_ctrl.type",
        ("kl.target", "kl.horizon"),
        "adaptive sets a target; fixed has none",
        _controller,
        default="fixed",
    ),
    Key(
        "algorithm.kl_ctrl.target_kl",
        ("kl.target",),
        "with algorithm.kl_ctrl.type=adaptive",
        lambda value, values: {"kl.target": value} if _adapted(values) else {},
        default=0.1,
        types=NUMBER,
    ),
    Key(
        "algorithm.kl_ctrl.horizon",
        ("kl.horizon",),
        "with algorithm.kl_ctrl.type=adaptive",
        lambda value, values: {"kl.horizon": value} if _adapted(values) else {},
        default=10000,
        types=NUMBER,
    ),
    Key(
        "algorithm.filter_groups.enable",
        ("filter.dynamic_sampling",),
        default=False,
        types=YES_OR_NO,
    ),
    Key(
        "algorithm.filter_groups.metric",
        ("eval.verifier",),
        "groups are right or wrong by the reward that checks answers, whatever is added to it; without such a reward "
        "by all rewards",
        _metric,
        types=(*TEXT, *OR_NONE),
    ),
    Key(
        "algorithm.filter_groups.max_num_gen_batches",
        ("filter.max_rounds",),
        "a round is of data.train_batch_size prompts; 0, no limit, is 10000. After the last the step trains on the "
        "groups that it has, where verl ends the run",
        _rounds,
        default=0,
        applied=True,
        types=WHOLE,
    ),
    Key("algorithm.filter_groups.max_inflight_gen_batches", (), "rounds are sampled one after the other"),
    Key(
        f"{C}.rollout_is",
        ("correction.kind", "correction.level", "correction.threshold", "correction.threshold_lower"),
        "oncurve's sampler is the model that is trained: the weights are 1 but for completions of older weights",
        _correction,
    ),
    Key(
        f"{C}.rollout_is_threshold",
        ("correction.threshold", "correction.threshold_lower"),
        'a number truncates; "lower_upper" masks',
        _threshold,
        default=2.0,
    ),
    Key(
        f"{C}.bypass_mode",
        ("learner.old_logprobs",),
        'True is "rollout"; with one update per step old and present policy are one, and it has no effect',
        _bypass,
        default=False,
        types=YES_OR_NO,
    ),
    refused(f"{C}.rollout_rs", f'leave it out; {C}.rollout_is_threshold="0.5_2.0" masks tokens by their weights', None),
    Key(f"{C}.rollout_rs_threshold", (), "only read with rollout_rs"),
    Key(f"{C}.rollout_rs_threshold_lower", (), "of older versions; only read with rollout_rs"),
    Key(f"{C}.rollout_token_veto_threshold", (), "of older versions; only read with rollout_rs"),
    refused(f"{C}.loss_type", "bypass_mode has the clipped loss here; leave it out", "ppo_clip"),
    refused(f"{C}.use_policy_gradient", "bypass_mode has the clipped loss here; set it to False", False),
    refused(f"{C}.rollout_is_batch_normalize", "weights are used as they are; set it to False", False),
    refused("algorithm.use_pf_ppo", "samples are not reweighted; set it to False", False),
    Key("algorithm.pf_ppo.reweight_method", (), "only read with use_pf_ppo"),
    Key("algorithm.pf_ppo.weight_pow", (), "only read with use_pf_ppo"),
    *idle("algorithm", "gdpo_reward_keys gdpo_reward_weights", "only read by gdpo, which is refused"),
)
