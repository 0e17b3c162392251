"""The settings of TRL's PPO that are not those of every trainer: `PPOConfig`, and the arguments of `PPOTrainer`."""

from __future__ import annotations

import math
from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.trl.dialect import as_given
from oncurve.compat.trl.ppo_sizes import batches, batches_if_possible, in_batches, steps_of, updates_per_step
from oncurve.compat.trl.run_keys import evaluates

NONE = type(None)
ITSELF = "TRL computes it from the other sizes; leave it out"
EVERY_STEP = "every step is logged, as in TRL's PPO; metrics.jsonl has all metrics"


def _gae(value: Any, values: Values) -> dict[str, Any]:
    return {"advantage.kind": "gae", "advantage.lam": value, "critic.kind": "own"}


def _clip(value: Any, values: Values) -> dict[str, Any]:
    made = {"objective.kind": "clipped", "objective.clip_low": value, "objective.clip_high": value}
    return {**made, "aggregation.kind": "token-mean"}


def _critics_rate(value: Any, values: Values) -> dict[str, Any]:
    return {"learner.learning_rate": value, "critic.learning_rate": value if values["vf_coef"] else 0.0}


def _value_weight(value: Any, values: Values) -> dict[str, Any]:
    if not 0 <= value < math.inf:
        raise ConfigError(f"expected a number of at least 0, got {shown(value)}")
    return {} if value else {"critic.learning_rate": 0.0}


def _value_clip(value: Any, values: Values) -> dict[str, Any]:
    if value == 0:
        raise ConfigError("0 is no clipping here, and in TRL it holds values where they are; write a number above 0")
    return {"critic.clip": value}


def _kl(value: Any, values: Values) -> dict[str, Any]:
    return {"kl.where": "reward", "kl.coef": value} if value else {"kl.coef": 0.0}


def _estimator(value: Any, values: Values) -> dict[str, Any]:
    if value not in ("k1", "k3"):
        raise ConfigError(f"kl_estimator is 'k1' or 'k3', got {shown(value)}")
    if value == "k3" and values["kl_coef"]:
        raise ConfigError(
            "in the reward the KL is the difference of the log-probs, 'k1'; k3 is for the loss, in a recipe: "
            '[kl] where = "loss", estimator = "k3"'
        )
    return {}


def _stop_token(value: Any, values: Values) -> dict[str, Any]:
    if value not in (None, "eos"):
        raise ConfigError(f"stop_token is 'eos' or None, got {shown(value)}; a token of your own is stop_token_id")
    if value is not None and values["stop_token_id"] is not None:
        raise ConfigError("stop_token and stop_token_id say the same; leave one of them out")
    return {}


def _unfinished(value: Any, values: Values) -> dict[str, Any]:
    if value is None:
        return {}
    if not 0 < value < math.inf:
        raise ConfigError(f"expected a number above 0, which is subtracted, got {shown(value)}")
    longest = values["response_length"]
    if type(longest) is not int or longest < 2:
        raise ConfigError("it needs a response_length of at least 2")
    return {"rewards": [{"kind": "length_cap", "max_length": longest - 1, "penalty": -float(value)}]}


def _epochs(value: Any, values: Values) -> dict[str, Any]:
    if not 0 < value < math.inf:
        raise ConfigError(f"expected a number above 0, got {shown(value)}")
    return {"run.epochs": value} if values["total_episodes"] is None else {}


def _episodes(value: Any, values: Values) -> dict[str, Any]:
    return {} if value is None else {"run.steps": steps_of(value, values)}


def _warmup(value: Any, values: Values) -> dict[str, Any]:
    if not value >= 0 or (value >= 1 and value % 1 != 0):
        raise ConfigError(f"expected a number of batches, or a share of them below 1, got {shown(value)}")
    if 0 < value < 1:
        return {"learner.warmup_ratio": value}
    return {"learner.warmup_steps": int(value) * updates_per_step(values)} if value else {}


def _saves(value: Any, values: Values) -> dict[str, Any]:
    return {} if values["save_strategy"] == "no" else {"checkpoint.every": in_batches(value, values)}


def _evaluation(value: Any, values: Values) -> dict[str, Any]:
    if not evaluates(values):
        return {}
    every = in_batches(values["eval_steps"] or values["logging_steps"], values)
    return {"eval.every": every, "eval.n": 1, "eval.at_start": values["eval_on_start"]}


SIZES = tuple(
    Key(
        name,
        ("data.prompts_per_step", "rollout.group_size", "learner.minibatches"),
        "a batch is per_device_train_batch_size times gradient_accumulation_steps, one completion per prompt; a pass "
        "over it is num_mini_batches / gradient_accumulation_steps updates, as in TRL, and at least one",
        batches if name == "per_device_train_batch_size" else batches_if_possible,
        default=default,
        applied=name == "per_device_train_batch_size",
        types=(int,),
    )
    for name, default in (
        ("per_device_train_batch_size", 8),
        ("gradient_accumulation_steps", 1),
        ("num_mini_batches", 1),
    )
)
EVALUATION = "held-out prompts, one sampled completion and a greedy one each; TRL's PPO evaluates only by its samples"

PPO_KEYS = (
    *SIZES,
    Key("num_ppo_epochs", ("learner.ppo_epochs",), default=4, applied=True, types=(int,)),
    Key(
        "total_episodes",
        ("run.steps",),
        "completions; here in steps of a batch, rounded up as in TRL",
        _episodes,
        types=(int, NONE),
    ),
    Key("num_train_epochs", ("run.epochs",), "without total_episodes", _epochs, 3.0, applied=True, types=(float,)),
    Key("response_length", ("rollout.max_new_tokens",), default=53, applied=True, types=(int,)),
    Key("temperature", ("rollout.temperature",), default=0.7, applied=True, types=(float,)),
    Key(
        "stop_token_id",
        ("rollout.eos_ids",),
        "next to the model's own end tokens",
        lambda value, values: {} if value is None else {"rollout.eos_ids": [value]},
        types=(int, NONE),
    ),
    Key(
        "stop_token",
        (),
        "completions always end at the model's own end tokens, which is 'eos'; with None TRL goes on after them to "
        "response_length",
        _stop_token,
        types=(str, NONE),
    ),
    Key(
        "missing_eos_penalty",
        ("rewards",),
        "a reward length_cap of all completions with response_length tokens, also of one that ends with its last",
        _unfinished,
        types=(float, NONE),
    ),
    Key(
        "lam",
        ("advantage.kind", "advantage.lam", "critic.kind"),
        "gae, with a critic of its own; whitened over the batch, as in TRL. TRL gives the score one place after the "
        "last token, oncurve at it",
        _gae,
        default=0.95,
        applied=True,
        types=(float,),
    ),
    Key("gamma", ("advantage.gamma",), default=1.0, types=(float,)),
    Key(
        "cliprange",
        ("objective.kind", "objective.clip_low", "objective.clip_high", "aggregation.kind"),
        "token-mean over an update; TRL takes the mean of each piece of per_device_train_batch_size, and of these",
        _clip,
        default=0.2,
        applied=True,
        types=(float,),
    ),
    Key("cliprange_value", ("critic.clip",), "", _value_clip, default=0.2, types=(float,)),
    Key(
        "vf_coef",
        ("critic.learning_rate",),
        "the critic has its own network and AdamW, whose steps do not depend on a factor; 0: it does not learn",
        _value_weight,
        default=0.1,
        types=(float,),
    ),
    Key("kl_coef", ("kl.where", "kl.coef"), "in the reward", _kl, default=0.05, applied=True, types=(float,)),
    Key(
        "kl_estimator",
        ("kl.estimator",),
        "k1 is what the reward has here, too; k3 is refused",
        _estimator,
        default="k1",
        types=(str,),
    ),
    Key(
        "learning_rate",
        ("learner.learning_rate", "critic.learning_rate"),
        "of policy and critic",
        _critics_rate,
        default=3e-6,
        applied=True,
        types=(float,),
    ),
    Key(
        "warmup_steps",
        ("learner.warmup_steps", "learner.warmup_ratio"),
        "batches in TRL, updates here; below 1 a share",
        _warmup,
        default=0,
        types=(float,),
    ),
    Key(
        "max_grad_norm",
        ("learner.max_grad_norm",),
        "TRL's PPO does not read it: gradients are not clipped, 0",
        lambda value, values: {"learner.max_grad_norm": 0.0},
        default=1.0,
        applied=True,
        types=(float,),
    ),
    Key("save_steps", ("checkpoint.every",), "batches, which are steps", _saves, 500, applied=True, types=(float,)),
    Key("eval_strategy", ("eval.every", "eval.n", "eval.at_start"), EVALUATION, _evaluation, "no", types=(str,)),
    Key("eval_steps", ("eval.every",), "batches, which are steps", _evaluation, types=(float, NONE)),
    Key("eval_on_start", ("eval.at_start",), EVALUATION, _evaluation, default=False, types=(bool,)),
    Key(
        "whiten_rewards",
        (),
        "rewards are used as they are, and advantages are whitened; set it to False",
        default=False,
        refused=True,
        harmless=(False,),
    ),
    *(
        Key(name, (), "give peft_config, one adapter over frozen weights; leave it out", refused=True, harmless=(None,))
        for name in ("model_adapter_name", "ref_adapter_name")
    ),
    *(
        Key(name, (), "read by scripts alone, which load the models", default="EleutherAI/pythia-160m", types=(str,))
        for name in ("sft_model_path", "reward_model_path")
    ),
    Key("max_steps", (), "TRL's PPO does not read it; total_episodes says how long a run is", default=-1, types=(int,)),
    Key("logging_strategy", (), EVERY_STEP, default="steps"),
    Key("logging_steps", (), EVERY_STEP + "; without eval_steps evaluations are as often", default=10, types=(float,)),
    Key("logging_first_step", (), EVERY_STEP, default=False),
    Key("local_rollout_forward_batch_size", (), "learner.tokens_per_micro_batch bounds a forward pass", default=64),
    Key("num_sample_generations", (), "every completion is in rollouts/; eval_strategy='steps' evaluates", default=10),
    Key("dataset_num_proc", (), "prompts are made when they are needed"),
    Key("resume_from_checkpoint", (), "the argument of PPOTrainer.train says it"),
    *(
        Key(name, (), ITSELF)
        for name in (
            "world_size",
            "num_total_batches",
            "micro_batch_size",
            "local_batch_size",
            "batch_size",
            "local_mini_batch_size",
            "mini_batch_size",
        )
    ),
)
"""The fields of `PPOConfig` with rows of their own."""

FROM_POLICY = "the policy as it begins"
PPO_TRAINER_KEYS = (
    Key("PPOTrainer.args", (), "a PPOConfig"),
    Key("PPOTrainer.processing_class", (), "the policy's tokenizer; a reward model brings its own"),
    Key("PPOTrainer.model", ("model.path",), "a folder, a hub id, or a module", as_given),
    Key("PPOTrainer.ref_model", (), f"the reference is {FROM_POLICY}; a model with other weights is refused"),
    Key("PPOTrainer.reward_model", ("rewards",), "a folder or hub id, or a module with the weights of one", as_given),
    Key(
        "PPOTrainer.train_dataset",
        ("data.kind", "data.path", "data.rows", "data.prompt_column", "data.chat"),
        "tokens in a column input_ids, or text or messages in a column prompt; text is continued as it is",
        as_given,
    ),
    Key("PPOTrainer.value_model", (), f"the critic is {FROM_POLICY} with a value head of 0; other weights are refused"),
    Key("PPOTrainer.data_collator", (), "prompts are not padded"),
    Key("PPOTrainer.eval_dataset", ("data.eval_path", "data.eval_rows"), "one data set; in a recipe a path", as_given),
    Key(
        "PPOTrainer.optimizers",
        (),
        "AdamW, by the settings of PPOConfig",
        refused=True,
        harmless=((None, None), None),
    ),
    Key("PPOTrainer.callbacks", (), "the hooks from on_train_begin to on_train_end; oncurve has on_step="),
    Key(
        "PPOTrainer.peft_config",
        ("lora.rank", "lora.alpha", "lora.targets", "lora.dropout"),
        "a LoraConfig; the critic trains an adapter as well, where TRL trains it whole",
        as_given,
    ),
)
