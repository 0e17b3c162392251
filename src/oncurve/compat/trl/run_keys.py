"""TRL's settings of everything but the loss: sizes and lengths, sampling, optimizer, model, checkpoints, evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Key, Make, Values
from oncurve.compat.trl.sizes import in_steps, prompts_and_minibatches, sizes

ALL = 10**9
"""Checkpoints to keep where TRL keeps all."""

SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla", "adamw_torch_npu_fused")
TRACKERS = ("tensorboard", "wandb", "trackio")


def _steps(value: Any, values: Values) -> dict[str, Any]:
    return {"run.steps": in_steps(value, values)} if value > 0 else {}


def _epochs(value: Any, values: Values) -> dict[str, Any]:
    if not 0 < value < math.inf:
        raise ConfigError(f"expected a number above 0, got {shown(value)}")
    return {} if values["max_steps"] > 0 else {"run.epochs": value}


def _longest(value: Any, values: Values) -> dict[str, Any]:
    if value is None:
        raise ConfigError("a run needs a longest completion; write a number of tokens")
    return {"rollout.max_new_tokens": value}


def _chat(value: Any, values: Values) -> dict[str, Any]:
    return {"data.chat_template_kwargs": dict(value)} if value else {"data.chat": "never"}


def _schedule(value: Any, values: Values) -> dict[str, Any]:
    if value not in SCHEDULES:
        raise ConfigError(f"the schedules are {', '.join(SCHEDULES)}, got {shown(value)}{suggest(value, SCHEDULES)}")
    return {"learner.schedule": SCHEDULES[value]}


def _warmup(value: Any, values: Values) -> dict[str, Any]:
    if value < 0:
        raise ConfigError(f"expected a number of updates, or a share of them below 1, got {shown(value)}")
    if 0 < value < 1:
        return {"learner.warmup_ratio": value}
    if value % 1 != 0:
        raise ConfigError(f"expected a whole number, or a share below 1, got {shown(value)}")
    return {"learner.warmup_steps": int(value)} if value else {}


def _betas(value: Any, values: Values) -> dict[str, Any]:
    return {"learner.betas": [values["adam_beta1"], values["adam_beta2"]]}


def _optimizer(value: Any, values: Values) -> dict[str, Any]:
    if value in ADAMW:
        return {}
    if "adamw" in value and ("8bit" in value or "4bit" in value):
        return {"learner.moments": "bfloat16"}
    raise ConfigError(f"the optimizer is AdamW ({', '.join(ADAMW[:2])}), got {shown(value)}")


def _dtype(value: Any, values: Values) -> dict[str, Any]:
    return {"model.dtype": "float32"} if value is False else {"model.dtype": "auto"} if value else {}


MODEL_WORDS: Mapping[str, str] = {
    "revision": "model.revision",
    "trust_remote_code": "model.trust_remote_code",
    "dtype": "model.dtype",
    "torch_dtype": "model.dtype",
    "device_map": "model.device",
}
UNUSED_MODEL_WORDS = ("attn_implementation", "use_cache", "low_cpu_mem_usage", "use_safetensors", "cache_dir", "token")


def _model(value: Any, values: Values) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, given in (value or {}).items():
        if name in UNUSED_MODEL_WORDS or given is None or (name, given) == ("revision", "main"):
            continue
        if name == "quantization_config":
            raise ConfigError(
                "quantization_config: not available under this name; over an adapter the weights are stored with 4 bits"
                ' by oncurve\'s model.quantization = "nf4"'
            )
        if name not in MODEL_WORDS:
            raise ConfigError(f"{name}: not available here{suggest(name, MODEL_WORDS)}")
        if name in ("dtype", "torch_dtype"):
            given = str(given).removeprefix("torch.")
            if given not in ("float32", "bfloat16", "auto"):
                raise ConfigError(f"{name}: expected 'float32', 'bfloat16' or 'auto', got {shown(given)}")
            if given != "bfloat16":
                continue  # the weights' type, which is float32 here too; what is computed in is bf16's
        if name == "device_map":
            if given == "auto":
                continue
            if given not in ("cpu", "cuda"):
                raise ConfigError(f"device_map: a model is on one device: 'auto', 'cpu' or 'cuda', got {shown(given)}")
        made[MODEL_WORDS[name]] = given
    return made


GENERATION_STOPS = ("stop", "stop_strings")
GENERATION_IDS = ("eos_token_id", "stop_token_ids")
HARMLESS_GENERATION = {"do_sample": True, "num_beams": 1, "use_cache": True, "top_p": 1.0, "top_k": 0, "min_p": None}


def _generation(value: Any, values: Values) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, given in (value or {}).items():
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        if name in GENERATION_STOPS:
            made["rollout.stop"] = listed
        elif name in GENERATION_IDS:
            made["rollout.eos_ids"] = listed
        elif name == "temperature":
            made["rollout.temperature"] = given
        elif name not in HARMLESS_GENERATION or given != HARMLESS_GENERATION[name]:
            known = ", ".join((*GENERATION_STOPS, *GENERATION_IDS, "temperature"))
            raise ConfigError(f"{name}: not available here; known are {known}")
    return made


def _trackers(value: Any, values: Values) -> dict[str, Any]:
    named = [value] if isinstance(value, str) else list(value or ())
    named = [name for name in named if name != "none"]
    for name in named:
        if name not in TRACKERS:
            raise ConfigError(f"the trackers are {', '.join(TRACKERS)}, and none; got {shown(name)}")
    return {"tracking.to": named} if named else {}


def _tracked(name: str) -> Make:
    """A setting of `[tracking]`, where there is a tracker."""

    def make(value: Any, values: Values) -> dict[str, Any]:
        return {name: value} if value is not None and _trackers(values["report_to"], values) else {}

    return make


def _saves(value: Any, values: Values) -> dict[str, Any]:
    if value == "no":
        return {"checkpoint.every": 0}
    if value in ("epoch", "best"):
        raise ConfigError(f"{shown(value)} is not known before the run; write 'steps', with save_steps")
    if value != "steps":
        raise ConfigError(f"expected 'no', 'steps' or 'epoch', got {shown(value)}")
    return {}


def _save_steps(value: Any, values: Values) -> dict[str, Any]:
    return {} if values["save_strategy"] == "no" else {"checkpoint.every": in_steps(value, values)}


def _keep(value: Any, values: Values) -> dict[str, Any]:
    return {} if values["save_strategy"] == "no" else {"checkpoint.keep": ALL if value is None else value}


def evaluates(values: Values) -> bool:
    """Whether the policy is evaluated during training. Raises ConfigError: no such strategy, or not known yet."""
    strategy = values["eval_strategy"]
    if strategy == "epoch":
        raise ConfigError("the steps of an epoch are not known before the run; write eval_strategy='steps', eval_steps")
    if strategy not in ("no", "steps"):
        raise ConfigError(f"eval_strategy is 'no', 'steps' or 'epoch', got {shown(strategy)}")
    return bool(strategy == "steps")


def _evaluation(value: Any, values: Values) -> dict[str, Any]:
    if not evaluates(values):
        return {}
    steps = values["eval_steps"] or values["logging_steps"]
    return {
        "eval.every": in_steps(steps, values),
        "eval.n": values["num_generations_eval"] or values["num_generations"],
        "eval.at_start": values["eval_on_start"],
    }


def _best(value: Any, values: Values) -> dict[str, Any]:
    if value is None:
        return {}
    if value.removeprefix("eval_") != "reward":
        raise ConfigError(f"the best checkpoint is that of 'eval_reward', got {shown(value)}")
    return {"checkpoint.best": "eval/reward"} if evaluates(values) else {}


PROMPTS = "TRL counts completions; a step here is a generation with all its updates, of whole groups"
UPDATES = "TRL's steps are updates; here in steps"
EVALUATION = (
    "n sampled completions of each held-out prompt, and a greedy one in addition; before step 1 by eval_on_start"
)
NONE = type(None)


def _of_sizes(value: Any, values: Values) -> dict[str, Any]:
    """The settings of all sizes; none where they do not divide, which the first of the keys says."""
    try:
        return prompts_and_minibatches(value, values)
    except ConfigError:
        return {}


SIZES = tuple(
    Key(
        name,
        ("data.prompts_per_step", "learner.minibatches"),
        PROMPTS,
        prompts_and_minibatches if name == "per_device_train_batch_size" else _of_sizes,
        default=default,
        applied=name == "per_device_train_batch_size",
        types=(int, NONE) if default is None else (int,),
    )
    for name, default in (
        ("per_device_train_batch_size", 8),
        ("gradient_accumulation_steps", 1),
        ("steps_per_generation", None),
        ("generation_batch_size", None),
    )
)

RUN_KEYS = (
    *SIZES,
    Key("num_generations", ("rollout.group_size",), default=8, types=(int,)),
    Key("num_iterations", ("learner.ppo_epochs",), default=1, types=(int,)),
    Key("max_steps", ("run.steps",), UPDATES, _steps, default=-1, types=(int,)),
    Key(
        "num_train_epochs",
        ("run.epochs",),
        "without effect next to max_steps; TRL leaves out an incomplete last generation of each epoch",
        _epochs,
        default=3.0,
        applied=True,
        types=(float,),
    ),
    Key("max_completion_length", ("rollout.max_new_tokens",), "", _longest, default=512, types=(int, NONE)),
    Key("temperature", ("rollout.temperature",), default=1.0, types=(float,)),
    Key(
        "generation_kwargs",
        ("rollout.stop", "rollout.eos_ids", "rollout.temperature"),
        "strings and tokens that end a completion, and the temperature",
        _generation,
        types=(dict, NONE),
    ),
    Key(
        "chat_template_kwargs",
        ("data.chat_template_kwargs", "data.chat"),
        "a prompt that is text is continued as it is, and messages are a chat",
        _chat,
        applied=True,
        types=(dict, NONE),
    ),
    Key("shuffle_dataset", ("data.shuffle",), default=True, types=(bool,)),
    Key("seed", ("run.seed",), "of everything random", default=42, applied=True, types=(int,)),
    Key(
        "data_seed",
        ("run.seed",),
        "the order of the prompts follows from run.seed too",
        lambda value, values: {} if value is None else {"run.seed": value},
        types=(int, NONE),
    ),
    Key("learning_rate", ("learner.learning_rate",), default=1e-6, types=(float,)),
    Key(
        "lr_scheduler_type",
        ("learner.schedule",),
        "in a warm-up the first update moves already",
        _schedule,
        default="linear",
        applied=True,
        types=(str,),
    ),
    Key(
        "warmup_steps",
        ("learner.warmup_steps", "learner.warmup_ratio"),
        "below 1 a share of the updates",
        _warmup,
        default=0,
        types=(float,),
    ),
    Key(
        "optim",
        ("learner.moments",),
        "AdamW with float32 masters; 8 bits and fewer: moments in bfloat16",
        _optimizer,
        default="adamw_torch_fused",
        types=(str,),
    ),
    Key("adam_beta1", ("learner.betas",), "", _betas, default=0.9, types=(float,)),
    Key("adam_beta2", ("learner.betas",), "", _betas, default=0.999, types=(float,)),
    Key("adam_epsilon", ("learner.epsilon",), default=1e-8, types=(float,)),
    Key("weight_decay", ("learner.weight_decay",), default=0.0, types=(float,)),
    Key("max_grad_norm", ("learner.max_grad_norm",), default=1.0, types=(float,)),
    Key(
        "gradient_checkpointing",
        ("learner.gradient_checkpointing",),
        "the same gradient in less memory and more time",
        default=True,
        applied=True,
        types=(bool,),
    ),
    Key(
        "bf16",
        ("model.dtype",),
        "True: bfloat16 where the hardware multiplies it, over float32 masters; False: float32",
        _dtype,
        types=(bool, NONE),
    ),
    Key(
        "cast_lm_head_to_fp32",
        ("model.dtype",),
        "the whole model computes in float32; not with bf16=True",
        lambda value, values: {"model.dtype": "float32"} if value else {},
        default=False,
        types=(bool,),
    ),
    Key(
        "use_cpu",
        ("model.device",),
        "",
        lambda value, values: {"model.device": "cpu"} if value else {},
        default=False,
        types=(bool,),
    ),
    Key(
        "model_init_kwargs",
        ("model.revision", "model.trust_remote_code", "model.dtype", "model.device"),
        "revision, trust_remote_code, dtype and device_map; attn_implementation has no meaning",
        _model,
        types=(dict, NONE),
    ),
    Key("trust_remote_code", ("model.trust_remote_code",), default=False, types=(bool,)),
    Key("save_strategy", ("checkpoint.every",), "'no': one checkpoint, at the end", _saves, "steps", types=(str,)),
    Key("save_steps", ("checkpoint.every",), UPDATES, _save_steps, default=500, applied=True, types=(float,)),
    Key("save_total_limit", ("checkpoint.keep",), "None: all", _keep, applied=True, types=(int, NONE)),
    Key(
        "metric_for_best_model",
        ("checkpoint.best",),
        "the best checkpoint is kept, and `oncurve export DIR --step best` writes its policy",
        _best,
        types=(str, NONE),
    ),
    Key("eval_strategy", ("eval.every", "eval.n", "eval.at_start"), EVALUATION, _evaluation, "no", types=(str,)),
    Key("eval_steps", ("eval.every",), UPDATES, _evaluation, types=(float, NONE)),
    Key("num_generations_eval", ("eval.n",), EVALUATION, _evaluation, types=(int, NONE)),
    Key("eval_on_start", ("eval.at_start",), EVALUATION, _evaluation, default=False, types=(bool,)),
    Key("report_to", ("tracking.to",), "trackers; none by default", _trackers, "none", types=(str, list, tuple, NONE)),
    Key("project", ("tracking.project",), "of the trackers", _tracked("tracking.project"), "huggingface", True, (str,)),
    Key("trackio_space_id", ("tracking.space",), "", _tracked("tracking.space"), types=(str, NONE)),
    Key(
        "run_name",
        ("run.name",),
        "",
        lambda value, values: {} if value is None else {"run.name": value},
        types=(str, NONE),
    ),
)


def rows_known(values: Values, rows: int) -> dict[str, Any]:
    """The values of keys that depend on the number of training rows: epochs as steps."""
    found, made = sizes(values), dict[str, Any]()
    total = values["max_steps"]
    if total <= 0:
        steps = found.of_rows(rows, values["num_train_epochs"])
        if not steps:
            return made  # fewer rows than a step has prompts: run.epochs counts them
        total = made["max_steps"] = steps * found.updates
    epoch = max(1, rows // found.prompts) * found.updates
    for strategy, count in (("save_strategy", "save_steps"), ("eval_strategy", "eval_steps")):
        if values[strategy] == "epoch":
            made |= {strategy: "steps", count: epoch}
    return made
