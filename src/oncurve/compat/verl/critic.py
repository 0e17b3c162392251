"""verl's `critic.*`, of `algorithm.adv_estimator=gae`."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.algorithm import advantage
from oncurve.compat.verl.rows import (
    ACTOR,
    MODEL,
    NUMBER,
    OR_NONE,
    WHOLE,
    YES_OR_NO,
    local,
    optimizer,
    refused,
    updates_per_step,
)

SHARED = "critic and policy share the learner's settings; leave it out, or give both the same value"


def _if_critic(setting: str) -> Any:
    return lambda value, values: {setting: value} if advantage(values) == "gae" else {}


def _same(theirs: str) -> Any:
    """A `make` for a setting that critic and actor share: it must have the actor's value."""

    def make(value: Any, values: Values) -> dict[str, Any]:
        if value is not None and value != values[theirs] and advantage(values) == "gae":
            raise ConfigError(f"{shown(value)} differs from {theirs}={values[theirs]}: {SHARED}")
        return {}

    return make


def _model(path: Any, values: Values) -> dict[str, Any]:
    actor = values[f"{MODEL}.path"]
    if advantage(values) == "gae" and isinstance(path, str) and local(path) != local(actor):
        raise ConfigError(
            f"the critic begins as the policy, {actor}, with a value head; leave it out, got {shown(path)}"
        )
    return {}


def _warmup(steps: Any, values: Values) -> dict[str, Any]:
    if advantage(values) != "gae" or steps <= 1:
        return {}
    return {"critic.warmup_steps": (steps - 1) * updates_per_step(values)}


def shared(name: str, actors: str, ours: str, types: tuple[type, ...], note: str = "") -> Key:
    """The row of a critic's setting that has the actor's value here."""
    return Key(f"critic.{name}", (ours,), note or "the actor's", _same(f"{ACTOR}.{actors}"), types=types)


KEYS: tuple[Key, ...] = (
    Key(
        "critic.enable",
        ("critic.kind",),
        "by algorithm.adv_estimator",
        lambda _, values: {},
        types=(*YES_OR_NO, *OR_NONE),
    ),
    Key("critic.optim.lr", ("critic.learning_rate",), "", _if_critic("critic.learning_rate"), 1e-5, types=NUMBER),
    Key("critic.cliprange_value", ("critic.clip",), "", _if_critic("critic.clip"), 0.5, True, NUMBER),
    Key(
        "trainer.critic_warmup",
        ("critic.warmup_steps",),
        "verl trains the policy from step critic_warmup on; oncurve counts the updates before that step",
        _warmup,
        default=0,
        types=WHOLE,
    ),
    Key("critic.model.path", ("model.path",), "the critic begins as the policy", _model),
    Key("critic.model.tokenizer_path", ("model.path",), "the policy's", _model),
    shared("ppo_epochs", "ppo_epochs", "learner.ppo_epochs", WHOLE),
    shared("ppo_mini_batch_size", "ppo_mini_batch_size", "learner.minibatches", WHOLE),
    shared("loss_agg_mode", "loss_agg_mode", "aggregation.kind", ()),
    shared("loss_scale_factor", "loss_scale_factor", "aggregation.max_length", ()),
    shared("optim.weight_decay", "optim.weight_decay", "learner.weight_decay", NUMBER),
    shared("optim.betas", "optim.betas", "learner.betas", (list,)),
    shared("optim.clip_grad", "optim.clip_grad", "learner.max_grad_norm", NUMBER),
    shared("grad_clip", "optim.clip_grad", "learner.max_grad_norm", NUMBER, "verl 0.9 reads optim.clip_grad"),
    shared("optim.lr_warmup_steps", "optim.lr_warmup_steps", "learner.warmup_steps", (*WHOLE, *OR_NONE)),
    shared("optim.lr_warmup_steps_ratio", "optim.lr_warmup_steps_ratio", "learner.warmup_ratio", NUMBER),
    shared("optim.lr_scheduler_type", "optim.lr_scheduler_type", "learner.schedule", ()),
    shared("optim.warmup_style", "optim.warmup_style", "learner.schedule", ()),
    shared("optim.lr_decay_style", "optim.lr_decay_style", "learner.schedule", ()),
    shared("optim.decay_type", "optim.decay_type", "learner.schedule", ()),
    shared("optim.eps", "optim.eps", "learner.epsilon", NUMBER),
    *optimizer("critic.optim"),
    refused("critic.model.lora_rank", "the critic is trained whole; leave it out", 0),
    refused("critic.model.lora.rank", "the critic is trained whole; leave it out", 0),
    refused("critic.model.lora_adapter_path", "the critic is trained whole; leave it out", None),
    refused("critic.model.lora.adapter_path", "the critic is trained whole; leave it out", None),
    refused("critic.model.mtp.enable", "there is no multi-token prediction; set it to False", False),
)
