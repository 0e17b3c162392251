"""verl's `actor_rollout_ref.actor.*`: objective, aggregation, KL in the loss, batches and the optimizer."""

from __future__ import annotations

import math
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.algorithm import BOTH_KL, in_loss
from oncurve.compat.verl.rows import (
    ACTOR,
    NUMBER,
    OR_NONE,
    WHOLE,
    YES_OR_NO,
    is_given,
    meaning,
    minibatches,
    optimizer,
    updates_per_step,
)

OBJECTIVES = {
    "vanilla": "clipped",
    "gspo": "gspo",
    "sapo": "sapo",
    "gpg": "reinforce",
    "geo_mean": "gmpo",
    "cispo": "cispo",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}
EXAMPLE = "docs/extending.md shows how an objective is added"
NO_OBJECTIVE = {"clip_cov": EXAMPLE, "kl_cov": EXAMPLE, "dro": EXAMPLE, "bypass_mode": "vanilla with its ratio"}
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
OF_COMPLETIONS = "seq-mean-token-mean"
"""How verl's sapo and geo_mean add up, whatever loss_agg_mode says."""

ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
ESTIMATORS |= {"full": "full", "kl+": "k1+", "k1+": "k1+", "abs+": "abs+", "low_var_kl+": "k3+", "k3+": "k3+"}
ESTIMATORS |= {"mse+": "k2", "k2+": "k2"}


def objective(values: Values) -> str:
    """Our kind of objective. Raises ConfigError."""
    return meaning(values[f"{ACTOR}.policy_loss.loss_mode"], OBJECTIVES, NO_OBJECTIVE)


def _objective(mode: Any, values: Values) -> dict[str, Any]:
    kind = objective(values)
    made: dict[str, Any] = {"objective.kind": kind}
    if kind == "dppo":
        made["objective.divergence"] = "tv" if mode == "dppo_tv" else "kl"
    if kind in ("sapo", "gmpo"):
        made["aggregation.kind"] = OF_COMPLETIONS
    return made


SIDES = tuple(f"{ACTOR}.clip_ratio{side}" for side in ("", "_low", "_high"))


def _clips(values: Values) -> tuple[Any, Any]:
    """ε_low and ε_high: what was given for one side, else clip_ratio, else 0.2."""
    both = values[f"{ACTOR}.clip_ratio"]
    low, high = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
    return (values[low] if is_given(values, low) else both), (values[high] if is_given(values, high) else both)


def _clip(side: int) -> Any:
    def make(_: Any, values: Values) -> dict[str, Any]:
        kind, clips = objective(values), _clips(values)
        if kind == "dppo":
            if clips[0] != clips[1]:
                raise ConfigError(f"dppo has one bound for both directions, got {clips[0]} below and {clips[1]} above")
            return {"objective.delta": clips[side]}
        name = ("objective.clip_low", "objective.clip_high")[side]
        if kind == "clipped" and clips[side] == 0.2 and not is_given(values, *SIDES):
            return {}  # oncurve's default, too
        return {name: clips[side]} if kind in ("clipped", "gspo", "gmpo", "cispo") else {}

    return make


def _both_clips(_: Any, values: Values) -> dict[str, Any]:
    sides = [f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"]
    made = [_clip(side)(None, values) for side, name in enumerate(sides) if not is_given(values, name)]
    return {name: value for each in made for name, value in each.items()}


def _dual_clip(bound: Any, values: Values) -> dict[str, Any]:
    return {"clipped": {"objective.dual_clip": bound}, "dppo": {"objective.max_ratio": bound}}.get(
        objective(values), {}
    )


def _gate(setting: str) -> Any:
    return lambda value, values: {setting: value} if objective(values) == "sapo" else {}


def _aggregation(mode: Any, values: Values) -> dict[str, Any]:
    meaning(mode, dict(zip(AGGREGATIONS, AGGREGATIONS, strict=True)))
    if objective(values) not in ("sapo", "gmpo"):
        return {"aggregation.kind": mode}
    return {"kl.aggregation": mode} if in_loss(values) is not None and mode != OF_COMPLETIONS else {}


def _entropy(coef: Any, values: Values) -> dict[str, Any]:
    mode, loss = values[f"{ACTOR}.loss_agg_mode"], values[f"{ACTOR}.policy_loss.loss_mode"]
    if coef and objective(values) in ("sapo", "gmpo") and mode != OF_COMPLETIONS:
        raise ConfigError(
            f"verl adds the entropy up by loss_agg_mode={mode} and {loss} by {OF_COMPLETIONS}, and here the entropy "
            f"adds up as the objective does; set {ACTOR}.loss_agg_mode={OF_COMPLETIONS}, or the coefficient to 0"
        )
    return {"entropy.coef": coef}


def _scale_factor(length: Any, values: Values) -> dict[str, Any]:
    if length is None or values[f"{ACTOR}.loss_agg_mode"] != "seq-mean-token-sum-norm":
        return {}
    if not math.isfinite(length) or length != int(length):
        raise ConfigError(f"expected a whole number of tokens, got {shown(length)}")
    return {"aggregation.max_length": int(length)}


def _use_kl_loss(used: Any, values: Values) -> dict[str, Any]:
    if used and values["algorithm.use_kl_in_reward"]:
        raise ConfigError(BOTH_KL)
    if used:
        return {"kl.where": "loss"} if in_loss(values) is not None else {}
    return {} if values["algorithm.use_kl_in_reward"] else {"kl.coef": 0.0}


def _kl_loss_coef(coef: Any, values: Values) -> dict[str, Any]:
    return {"kl.coef": coef} if values[f"{ACTOR}.use_kl_loss"] else {}


def _kl_loss_type(kind: Any, values: Values) -> dict[str, Any]:
    estimator = meaning(kind, ESTIMATORS)
    return {"kl.estimator": estimator} if in_loss(values) is not None else {}


def _minibatches(_: Any, values: Values) -> dict[str, Any]:
    return {"learner.minibatches": minibatches(values)}


def _rows(rows: Any, values: Values) -> dict[str, Any]:
    if rows is None or values[f"{ACTOR}.use_dynamic_bsz"]:
        return {}
    longest = values["data.max_prompt_length"] + values["data.max_response_length"]
    return {"learner.tokens_per_micro_batch": rows * longest}


def _tokens(tokens: Any, values: Values) -> dict[str, Any]:
    return {"learner.tokens_per_micro_batch": tokens} if values[f"{ACTOR}.use_dynamic_bsz"] else {}


def _capped(cap: Any, values: Values) -> dict[str, Any]:
    made = {"correction.kind": "truncated", "correction.level": "token", "correction.threshold": cap}
    return made if cap > 0 else {}


O = f"{ACTOR}.optim"  # noqa: E741 - the section's letter
SCHEDULES = {name: name for name in ("constant", "linear", "cosine")}


def _schedule(kind: Any, values: Values) -> dict[str, Any]:
    return {} if kind is None else {"learner.schedule": meaning(kind, SCHEDULES)}


def _engine(engine: Any, values: Values) -> dict[str, Any]:
    """Return the schedule of a library whose default is not FSDP's constant rate, where none is given."""
    kind = meaning(engine, {"dp": "", "megatron": "", "veomni": "cosine", "torchtitan": "linear"})
    given = is_given(values, f"{O}.lr_scheduler_type", f"{O}.warmup_style", f"{O}.decay_type")
    return {"learner.schedule": kind} if kind and not given else {}


def _decay_type(kind: Any, values: Values) -> dict[str, Any]:
    if values["model_engine"] != "torchtitan":
        return {}
    return {"learner.schedule": meaning(kind, SCHEDULES, {"sqrt": "take linear"})}


def _warmup_steps(values: Values) -> int:
    """Return how many of verl's steps warm up; 0 where its ratio counts, as VeOmni's always does."""
    return 0 if values["model_engine"] == "veomni" else max(0, values[f"{O}.lr_warmup_steps"] or 0)


def _warmup(_: Any, values: Values) -> dict[str, Any]:
    steps = _warmup_steps(values)
    return {"learner.warmup_steps": steps * updates_per_step(values)} if steps else {}


def _warmup_ratio(ratio: Any, values: Values) -> dict[str, Any]:
    return {"learner.warmup_ratio": ratio} if ratio and not _warmup_steps(values) else {}


ROWS = (
    "completions times data.max_prompt_length + data.max_response_length, in tokens; the result does not depend on it"
)
FOR_SIDE = "without it oncurve takes clip_ratio, where that is given"

KEYS: tuple[Key, ...] = (
    Key(
        f"{ACTOR}.policy_loss.loss_mode",
        ("objective.kind", "objective.divergence", "aggregation.kind"),
        f"vanilla is clipped, geo_mean is gmpo, gpg is reinforce; sapo and geo_mean add up as {OF_COMPLETIONS}",
        _objective,
        default="vanilla",
    ),
    Key(
        f"{ACTOR}.clip_ratio",
        ("objective.clip_low", "objective.clip_high", "objective.delta"),
        "verl writes it and does not use it: clip_ratio_low and clip_ratio_high, which have defaults of 0.2, win "
        "there. Here it is the bound of each side that is not given",
        _both_clips,
        default=0.2,
        types=NUMBER,
    ),
    Key(
        f"{ACTOR}.clip_ratio_low",
        ("objective.clip_low", "objective.delta"),
        FOR_SIDE,
        _clip(0),
        default=0.2,
        applied=True,
        types=(*NUMBER, *OR_NONE),
    ),
    Key(
        f"{ACTOR}.clip_ratio_high",
        ("objective.clip_high", "objective.delta"),
        FOR_SIDE,
        _clip(1),
        default=0.2,
        applied=True,
        types=(*NUMBER, *OR_NONE),
    ),
    Key(
        f"{ACTOR}.clip_ratio_c",
        ("objective.dual_clip", "objective.max_ratio"),
        "the dual clip of vanilla, which oncurve has off by default; of dppo the largest ratio",
        _dual_clip,
        default=3.0,
        applied=True,
        types=NUMBER,
    ),
    Key(f"{ACTOR}.tau_pos", ("objective.tau_positive",), "of sapo", _gate("objective.tau_positive"), 1.0, types=NUMBER),
    Key(
        f"{ACTOR}.tau_neg", ("objective.tau_negative",), "of sapo", _gate("objective.tau_negative"), 1.05, types=NUMBER
    ),
    Key(
        f"{ACTOR}.loss_agg_mode",
        ("aggregation.kind", "kl.aggregation"),
        "the same words; of sapo and geo_mean it is the KL term's",
        _aggregation,
        default="token-mean",
    ),
    Key(
        f"{ACTOR}.loss_scale_factor",
        ("aggregation.max_length",),
        "of seq-mean-token-sum-norm; null is data.max_response_length",
        _scale_factor,
        types=(*NUMBER, *OR_NONE),
    ),
    Key(f"{ACTOR}.entropy_coeff", ("entropy.coef",), make=_entropy, default=0, types=NUMBER),
    Key(
        f"{ACTOR}.use_kl_loss",
        ("kl.where", "kl.coef"),
        'True is "loss"; False without the KL in the reward means no KL term, where oncurve has one by default',
        _use_kl_loss,
        default=False,
        applied=True,
        types=YES_OR_NO,
    ),
    Key(
        f"{ACTOR}.kl_loss_coef",
        ("kl.coef",),
        "without use_kl_loss=True verl does not read it",
        _kl_loss_coef,
        default=0.001,
        types=NUMBER,
    ),
    Key(
        f"{ACTOR}.kl_loss_type",
        ("kl.estimator",),
        "verl clamps the value of low_var_kl to 10, which takes its gradient away there; oncurve does not. full is "
        "exact here, and raises NotImplementedError in verl",
        _kl_loss_type,
        default="low_var_kl",
    ),
    Key(f"{ACTOR}.ppo_epochs", ("learner.ppo_epochs",), default=1, types=WHOLE),
    Key(
        f"{ACTOR}.ppo_mini_batch_size",
        ("learner.minibatches",),
        "data.train_batch_size over it, both in prompts",
        _minibatches,
        default=256,
        applied=True,
        types=WHOLE,
    ),
    Key(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        ("learner.tokens_per_micro_batch",),
        ROWS,
        _rows,
        None,
        False,
        (*WHOLE, *OR_NONE),
    ),
    Key(
        f"{ACTOR}.ppo_micro_batch_size",
        ("learner.tokens_per_micro_batch",),
        ROWS,
        _rows,
        None,
        False,
        (*WHOLE, *OR_NONE),
    ),
    Key(
        f"{ACTOR}.use_dynamic_bsz",
        ("learner.tokens_per_micro_batch",),
        "micro-batches are always filled by tokens; True says that ppo_max_token_len_per_gpu is their size",
        lambda used, values: {},
        default=False,
        types=YES_OR_NO,
    ),
    Key(
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        ("learner.tokens_per_micro_batch",),
        "with use_dynamic_bsz=True; the result does not depend on it",
        _tokens,
        default=16384,
        types=WHOLE,
    ),
    Key(f"{O}.lr", ("learner.learning_rate",), default=1e-6, types=NUMBER),
    Key(f"{O}.weight_decay", ("learner.weight_decay",), default=0.01, applied=True, types=NUMBER),
    Key(f"{O}.betas", ("learner.betas",), default=[0.9, 0.999], types=(list,)),
    Key(f"{O}.clip_grad", ("learner.max_grad_norm",), default=1.0, types=NUMBER),
    Key(f"{ACTOR}.grad_clip", ("learner.max_grad_norm",), "verl 0.9 reads optim.clip_grad instead", types=NUMBER),
    Key(
        f"{O}.lr_warmup_steps",
        ("learner.warmup_steps",),
        "verl counts steps, oncurve updates: times the updates per step; -1, null and model_engine=veomni leave "
        "it to the ratio",
        _warmup,
        default=-1,
        types=(*WHOLE, *OR_NONE),
    ),
    Key(
        f"{O}.lr_warmup_steps_ratio",
        ("learner.warmup_ratio",),
        "of all updates; verl does not read it next to lr_warmup_steps",
        _warmup_ratio,
        default=0.0,
        types=NUMBER,
    ),
    Key(
        f"{O}.lr_scheduler_type",
        ("learner.schedule",),
        "per update, where verl steps once per step",
        _schedule,
        "constant",
    ),
    Key(
        "model_engine",
        ("learner.schedule",),
        "the library that trains verl's model; veomni has the cosine by default, torchtitan linear, dp and megatron a "
        "constant rate",
        _engine,
        default="dp",
    ),
    Key(f"{O}.lr_decay_style", ("learner.schedule",), "of model_engine=megatron", _schedule, default="constant"),
    Key(f"{O}.decay_type", ("learner.schedule",), "of model_engine=torchtitan", _decay_type),
    Key(f"{O}.eps", ("learner.epsilon",), default=1e-8, types=NUMBER),
    Key(f"{O}.override_optimizer_config.eps", ("learner.epsilon",), types=NUMBER),
    Key(f"{O}.warmup_style", ("learner.schedule",), "the older name of lr_scheduler_type", _schedule),
    *optimizer(O),
    Key(f"{O}.total_training_steps", (), "the run's, which verl puts in its place, too"),
    Key(f"{O}.zero_indexed_step", (), "the first update has the schedule's first value above 0"),
    Key(f"{ACTOR}.calculate_entropy", (), "the entropy is always in the metrics"),
    Key(f"{ACTOR}.calculate_sum_pi_squared", (), "only for optimal_token_baseline"),
    Key(f"{ACTOR}.shuffle", (), "minibatches are always shuffled, by run.seed"),
    Key(f"{ACTOR}.data_loader_seed", (), "minibatches are shuffled by run.seed"),
    Key(
        f"{ACTOR}.tis_imp_ratio_cap",
        ("correction.kind", "correction.level", "correction.threshold"),
        "of older versions; the sampler is the model that is trained, so the weights are 1",
        _capped,
        types=NUMBER,
    ),
)
