"""OpenRLHF's `train_ppo_ray` flags in oncurve's settings.

Covered: every flag of 0.11, the flat names that releases before had (`--pretrain`), words or a shell script with the
call. Not covered: what is not a flag, such as DeepSpeed's files or an agent's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.compat.dialect import Dialect, Key, Values
from oncurve.compat.openrlhf_names import FLAG, LIST, NUMBER, PAIR, REFUSED, RENAMED, TEXT, WHOLE, WITHOUT_MEANING
from oncurve.compat.shell import SCRIPTS

ABOUT = f"""
`oncurve config from-openrlhf run.sh`, or the flags themselves (`--actor.model_name_or_path M ...`), print the recipe.
Flags of 0.11 and the flat ones from before (`--pretrain`, `--advantage_estimator group_norm`) are read alike.

{SCRIPTS}

What differs:

* `--rollout.batch_size` counts prompts, `--train.batch_size` completions: `learner.minibatches` follows from both.
* A reward function gets `(queries, prompts, labels)` there. Here it gets `completion` or `completions`, `prompts` and
  columns by name: rename its arguments. See [rewards](rewards.md).
* A KL penalty in the rewards (without `--algo.kl.use_loss`) needs an advantage of tokens: `gae` or `reinforce`. For
  `group_norm` give `--algo.kl.use_loss`, or `--algo.kl.init_coef 0`.
* `cosine_with_min_lr` ends at a tenth of the rate there, the cosine here at 0.

What to give up: settings of Ray, DeepSpeed and vLLM have no meaning here; `[cluster]` has ranks, sharding, workers and
vLLM of its own. `--rollout.top_p` makes the learner train on another distribution than the one that was sampled from.

The flat names of before, where they differ by more than a dot:

"""
ABOUT += "\n".join(
    f"* `--{old}`: `--{new}`" for old, new in sorted(RENAMED.items()) if new.replace(".", "_") != old
)  # the table has the names of 0.11

ESTIMATORS: dict[str, dict[str, Any]] = {
    "gae": {"advantage.kind": "gae", "critic.kind": "own"},
    "reinforce": {"advantage.kind": "reinforce_pp"},
    "reinforce_baseline": {"advantage.kind": "reinforce_pp_baseline"},
    "rloo": {"advantage.kind": "rloo"},
    "group_norm": {"advantage.kind": "grpo", "advantage.scale": "group", "advantage.eps": 1e-9},
    "dr_grpo": {"advantage.kind": "grpo", "advantage.scale": "none"},
}
ESTIMATOR, COEF = "algo.advantage.estimator", "algo.kl.init_coef"


def _chosen(value: str, options: Mapping[str, Any]) -> Any:
    if value not in options:
        raise ConfigError(f"expected one of {', '.join(options)}, got {shown(value)}{suggest(value, options)}")
    return options[value]


def _estimator(value: str, values: Values) -> dict[str, Any]:
    if value == "flash_reinforce":
        raise ConfigError('"flash_reinforce" is not here; reinforce_baseline has a baseline per prompt')
    return dict(_chosen(value, ESTIMATORS))


def _of_gae(setting: str) -> Any:
    return lambda value, values: {setting: value} if values[ESTIMATOR] == "gae" else {}


def _gamma(value: float, values: Values) -> dict[str, Any]:
    return {"advantage.gamma": value} if values[ESTIMATOR] in ("gae", "reinforce") else {}


def _positive(name: str, values: Values) -> int:
    if not isinstance(values[name], int) or isinstance(values[name], bool) or values[name] < 1:
        raise ConfigError(f"{name} is {shown(values[name])}, and must be a whole number above 0")
    return int(values[name])


def _minibatches(_: int, values: Values) -> dict[str, Any]:
    group, prompts = _positive("rollout.n_samples_per_prompt", values), _positive("rollout.batch_size", values)
    batch = _positive("train.batch_size", values)
    if batch % group or prompts * group % batch:
        raise ConfigError(
            f"{prompts} prompts with {group} completions each cannot be divided into updates of {batch} completions "
            f"of whole groups; give --train.batch_size {group * prompts} for one update"
        )
    return {"learner.minibatches": prompts * group // batch}


def _kl_where(value: bool, values: Values) -> dict[str, Any]:
    return {} if values[COEF] == 0 else {"kl.where": "loss" if value else "reward"}


def _kl_estimator(value: str, values: Values) -> dict[str, Any]:
    _chosen(value, dict.fromkeys(("k1", "k2", "k3")))
    if values[COEF] == 0:
        return {}
    if values["algo.kl.use_loss"]:
        return {"kl.estimator": "ratio_k3" if values["algo.kl.unbiased_gradient"] else value}
    if value != "k1":
        raise ConfigError(f"{value} in the reward is not here; give k1, or --algo.kl.use_loss")
    return {}


def _clip(value: list[float], _: Values) -> dict[str, Any]:
    return {"objective.clip_low": value[0], "objective.clip_high": value[1]}


def _one_clip(value: float, values: Values) -> dict[str, Any]:
    return {} if values.given("actor.eps_clip_low_high") else _clip([value, value], values)


def _objective(value: str, values: Values) -> dict[str, Any]:
    return {"objective.kind": _chosen(value, {"ppo": "clipped", "gspo": "gspo"})}


def _lengths(value: int, values: Values) -> dict[str, Any]:
    new = values["rollout.max_new_tokens"]
    if not values.given("data.max_len") and new is not None:
        return {}
    if new is None:
        return {"rollout.max_new_tokens": value}
    if isinstance(new, int) and value - new < 1:
        raise ConfigError(f"{value} leaves no room for a prompt next to {new} new tokens")
    return {} if values.given("prompt_max_len") else {"data.max_prompt_tokens": value - new}


def _reward_models(value: str, _: Values) -> dict[str, Any]:
    return {"rewards": [{"kind": "model", "path": path} for path in value.split(",")]} if value.strip() else {}


def _reward_function(value: str, _: Values) -> dict[str, Any]:
    if not value.endswith(".py"):
        raise ConfigError(
            f'{shown(value)}: a reward is no service here; write a function in a file, or [[rewards]] "model"'
        )
    return {"rewards": [{"kind": "python", "path": f"{value}:reward_func"}]}


def _overlong(value: float, values: Values) -> dict[str, Any]:
    if value != int(value) or value < 1:
        raise ConfigError(f"expected a whole number above 0, got {shown(value)}")
    weight = values["reward.overlong_penalty_factor"]
    return {"rewards": [{"kind": "overlong", "buffer": int(value), "weight": weight}]}


def _normalized(value: bool, values: Values) -> dict[str, Any]:
    if value and values[ESTIMATOR] not in ("group_norm", "reinforce_baseline"):
        raise ConfigError("rewards are not normalised by running statistics; scale them by a weight in [[rewards]]")
    return {}


def _listed(setting: str) -> Any:
    def make(value: str, _: Values) -> dict[str, Any]:
        entries = [part.strip() for part in value.split(",")]
        return {setting: entries[0] if len(entries) == 1 else entries}

    return make


def _weights(value: str, _: Values) -> dict[str, Any]:
    try:
        return {"data.weights": [float(part) for part in value.split(",")]}
    except ValueError:
        raise ConfigError(f"expected numbers with commas between them, got {shown(value)}") from None


def _template(value: str, values: Values) -> dict[str, Any]:
    parts = [part.replace("{", "{{").replace("}", "}}") for part in value.split("{}")]
    if len(parts) != 2:
        raise ConfigError(f'expected "{{}}" once, where the prompt goes, got {shown(value)}')
    return {"data.template": parts[0] + "{" + str(values["data.input_key"]) + "}" + parts[1]}


def _prompt_column(value: str, values: Values) -> dict[str, Any]:
    return {} if values.given("data.input_template") else {"data.prompt_column": value}


def _schedule(value: str, _: Values) -> dict[str, Any]:
    options = {"cosine_with_min_lr": "cosine", "cosine": "cosine", "linear": "linear", "constant": "constant"}
    return {"learner.schedule": _chosen(value, options | {"constant_with_warmup": "constant"})}


def _never_is_zero(setting: str) -> Any:
    return lambda value, values: {setting: max(value, 0)}


def _of_lora(setting: str) -> Any:
    return lambda value, values: {setting: value} if values["ds.lora.rank"] else {}


def _of_eval(setting: str) -> Any:
    return lambda value, values: {setting: value} if values["eval.dataset"] and values["eval.steps"] > 0 else {}


def _dtype(value: str, _: Values) -> dict[str, Any]:
    if value == "fp16":
        raise ConfigError('"fp16" is not here; give bf16')
    return {"model.dtype": _chosen(value, {"bf16": "bfloat16"})}


CORRECTIONS = {"tis": ("token", "truncated"), "icepop": ("token", "masked"), "seq-mask-tis": ("geometric", "masked")}


def _correction(value: str, values: Values) -> dict[str, Any]:
    mode = _chosen(values["algo.advantage.is_correction_mode"], {"mask": "masked", "clip": "truncated"})
    level = _chosen(value, {"off": "", "token": "token", "seq": "geometric"})
    return _bounded(level, mode, values) if level else {}


def _correction_of_type(_: bool, values: Values) -> dict[str, Any]:
    level, mode = _chosen(values["algo.advantage.is_correction_type"], CORRECTIONS)
    return _bounded(level, mode, values)


def _bounded(level: str, mode: str, values: Values) -> dict[str, Any]:
    bounds = values["algo.advantage.is_correction_threshold"]
    low, high = bounds if len(bounds) == 2 else (0.0, *bounds[:1])
    lower = {"correction.threshold_lower": low} if mode == "masked" else {}
    return {"correction.kind": mode, "correction.level": level, "correction.threshold": high} | lower


def _wandb(_: str, values: Values) -> dict[str, Any]:
    return {"tracking.to": ["wandb", "tensorboard"] if values["logger.tensorboard_dir"] else ["wandb"]}


def _tensorboard(_: str, values: Values) -> dict[str, Any]:
    return {} if values["logger.wandb.key"] else {"tracking.to": ["tensorboard"]}


def _of_wandb(setting: str) -> Any:
    return lambda value, values: {setting: value} if values["logger.wandb.key"] else {}


TRANSLATED = (
    Key("actor.model_name_or_path", ("model.path",), types=TEXT),
    Key("data.prompt_dataset", ("data.path",), "a file, a folder or a hub id", _listed("data.path"), types=TEXT),
    Key("data.prompt_probs", ("data.weights",), make=_weights, types=TEXT),
    Key("data.prompt_split", ("data.split",), types=TEXT),
    Key("data.input_key", ("data.prompt_column",), "", _prompt_column, "input", True, TEXT),
    Key("data.label_key", ("data.columns",), "rewards get the column `label`", lambda v,
        _: {"data.columns": {"label": v}},
        types=TEXT),
    Key("data.input_template", ("data.template",), "with the column by name", _template, types=TEXT),
    Key("data.apply_chat_template", ("data.chat",), "", lambda v, _: {"data.chat": "always" if v else "never"}, False,
        True,
        FLAG),
    Key("data.max_samples", ("data.limit",), types=WHOLE),
    Key("data.max_len", ("rollout.max_new_tokens", "data.max_prompt_tokens"), "prompt and completion together",
        _lengths,
        2048, True, WHOLE),
    Key("prompt_max_len", ("data.max_prompt_tokens",), types=WHOLE),
    Key("rollout.max_new_tokens", ("rollout.max_new_tokens",), types=WHOLE),
    Key("rollout.n_samples_per_prompt", ("rollout.group_size",), "", None, 1, True, WHOLE),
    Key("rollout.batch_size", ("data.prompts_per_step",), "prompts", None, 1024, True, WHOLE),
    Key("rollout.temperature", ("rollout.temperature",), types=NUMBER),
    Key("train.batch_size", ("learner.minibatches",), "completions of an update", _minibatches, 128, True, WHOLE),
    Key("train.max_epochs", ("learner.ppo_epochs",), types=WHOLE),
    Key("train.num_episodes", ("run.epochs",), "", None, 1, True, WHOLE),
    Key("train.seed", ("run.seed",), "", None, 42, True, WHOLE),
    Key("train.dynamic_batch_enable", (), "micro-batches are always of tokens", types=FLAG),
    Key("train.max_tokens_per_gpu", ("learner.tokens_per_micro_batch",), types=WHOLE),
    Key(ESTIMATOR, ("advantage.kind", "advantage.scale"), "", _estimator, "gae", True, TEXT),
    Key("algo.advantage.gamma", ("advantage.gamma",), "of gae and reinforce; else 1", _gamma, 1.0, True, NUMBER),
    Key("algo.advantage.lambd", ("advantage.lam",), "of gae", _of_gae("advantage.lam"), 1.0, True, NUMBER),
    Key(COEF, ("kl.coef",), "", None, 0.01, True, NUMBER),
    Key("algo.kl.use_loss", ("kl.where",), "without it the penalty is in the rewards", _kl_where, False, True, FLAG),
    Key("algo.kl.estimator", ("kl.estimator",), "", _kl_estimator, "k1", True, TEXT),
    Key("algo.kl.unbiased_gradient", ("kl.estimator",), "ratio_k3, with --algo.kl.use_loss", lambda v, _: {}, False,
        types=FLAG),
    Key("algo.kl.target", ("kl.target",), types=NUMBER),
    Key("algo.kl.horizon", ("kl.horizon",), types=WHOLE),
    Key("algo.dynamic_filtering_enable", ("filter.dynamic_sampling",), types=FLAG),
    Key("algo.advantage.is_correction_level", ("correction.kind",), "seq is the geometric mean; the sampler is the "
        "model that is trained, so the weights are 1", _correction, "off", types=TEXT),
    Key("algo.advantage.is_correction_enable", ("correction.kind",), "of 0.11.1 and before, by its type",
        _correction_of_type, types=FLAG),
    Key("algo.advantage.is_correction_type", ("correction.kind",), "tis, icepop or seq-mask-tis, with its enable",
        lambda v, _: {}, "tis", types=TEXT),
    Key("algo.advantage.is_correction_mode", ("correction.kind",), "", lambda v, _: {}, "mask", types=TEXT),
    Key("algo.advantage.is_correction_threshold", ("correction.threshold",), "", lambda v, _: {}, [0.5, 5.0],
        types=PAIR),
    Key("actor.policy_loss_type", ("objective.kind",), "", _objective, "ppo", True, TEXT),
    Key("actor.loss_agg_mode", ("aggregation.kind",), "", None, "token-mean", True, TEXT),
    Key("actor.eps_clip", ("objective.clip_low", "objective.clip_high"), "", _one_clip, 0.2, True, NUMBER),
    Key("actor.eps_clip_low_high", ("objective.clip_low", "objective.clip_high"), "", _clip, types=PAIR),
    Key("actor.dual_clip", ("objective.dual_clip",), types=NUMBER),
    Key("actor.entropy_coef", ("entropy.coef",), types=NUMBER),
    Key("actor.adam.lr", ("learner.learning_rate",), types=NUMBER, default=1e-6),
    Key("actor.adam.betas", ("learner.betas",), "", None, [0.9, 0.95], True, PAIR),
    Key("actor.adam.eps", ("learner.epsilon",), types=NUMBER),
    Key("actor.adam.weight_decay", ("learner.weight_decay",), types=NUMBER),
    Key("actor.lr_scheduler", ("learner.schedule",), "it ends at 0", _schedule, "cosine_with_min_lr", True, TEXT),
    Key("actor.lr_warmup_ratio", ("learner.warmup_ratio",), "", None, 0.03, True, NUMBER),
    Key("actor.min_lr_ratio", (), "the cosine ends at 0", types=NUMBER),
    Key("actor.max_norm", ("learner.max_grad_norm",), types=NUMBER),
    Key("actor.gradient_checkpointing_enable", ("learner.gradient_checkpointing",), types=FLAG),
    Key("critic.adam.lr", ("critic.learning_rate",), "of gae", _of_gae("critic.learning_rate"), 9e-6, True, NUMBER),
    Key("critic.value_clip", ("critic.clip",), "of gae", _of_gae("critic.clip"), 0.5, True, NUMBER),
    Key("critic.freezing_steps", ("critic.warmup_steps",), "of gae; in updates",
        lambda v, values: {"critic.warmup_steps": max(v, 0)} if values[ESTIMATOR] == "gae" else {}, types=WHOLE),
    Key("reward.model_name_or_path", ("rewards",), "", _reward_models, types=TEXT),
    Key("reward.remote_url", ("rewards",), "its arguments are (queries, prompts, labels) there: rename them",
        _reward_function, types=TEXT),
    Key("reward.overlong_buffer_len", ("rewards",), "", _overlong, types=NUMBER),
    Key("reward.overlong_penalty_factor", ("rewards",), "the weight of it", lambda v, _: {}, 1.0, types=NUMBER),
    Key("reward.normalize_enable", (), "advantages of groups or batches do not depend on it", _normalized, types=FLAG),
    Key("ds.param_dtype", ("model.dtype",), "", _dtype, "bf16", types=TEXT),
    Key("ds.load_in_4bit", ("model.quantization",), "", lambda v, _: {"model.quantization": "nf4"} if v else {},
        types=FLAG),
    Key("ds.lora.rank", ("lora.rank",), types=WHOLE, default=0),
    Key("ds.lora.alpha", ("lora.alpha",), "", _of_lora("lora.alpha"), 16, True, WHOLE),
    Key("ds.lora.target_modules", ("lora.targets",), "", _of_lora("lora.targets"), types=LIST),
    Key("ds.lora.dropout", ("lora.dropout",), "", _of_lora("lora.dropout"), types=NUMBER),
    Key("ckpt.save_steps", ("checkpoint.every",), "", _never_is_zero("checkpoint.every"), -1, True, WHOLE),
    Key("ckpt.max_num", ("checkpoint.keep",), "with --ckpt.save_steps",
        lambda v, values: {"checkpoint.keep": v} if values["ckpt.save_steps"] > 0 else {}, 3, True, WHOLE),
    Key("ckpt.best_metric_key", ("checkpoint.best",), "the metric is eval/accuracy",
        lambda v, _: {} if v in ("", "none") else {"checkpoint.best": "eval/accuracy"}, types=TEXT),
    Key("eval.dataset", ("data.eval_path",), "", _listed("data.eval_path"), types=TEXT),
    Key("eval.split", ("data.eval_split",), "", _of_eval("data.eval_split"), types=TEXT),
    Key("eval.steps", ("eval.every",), "", lambda v, values: {"eval.every": max(v,
        0)} if values["eval.dataset"] else {},
        -1, types=WHOLE),
    Key("eval.temperature", ("eval.temperature",), "", _of_eval("eval.temperature"), 0.6, True, NUMBER),
    Key("eval.n_samples_per_prompt", ("eval.n",), "", _of_eval("eval.n"), 4, True, WHOLE),
    Key("logger.wandb.key", ("tracking.to",), "log in by `wandb login`: the key is not kept", _wandb, types=TEXT),
    Key("logger.wandb.org", ("tracking.entity",), "", _of_wandb("tracking.entity"), types=TEXT),
    Key("logger.wandb.project", ("tracking.project",), "", _of_wandb("tracking.project"), types=TEXT),
    Key("logger.wandb.run_name", ("tracking.name",), "", _of_wandb("tracking.name"), types=TEXT),
    Key("logger.tensorboard_dir", ("tracking.to",), "in the run's folder", _tensorboard, types=TEXT),
)  # fmt: skip

DIALECT = Dialect(
    "OpenRLHF",
    "0.11",
    (*TRANSLATED, *REFUSED, *(Key(name, (), why, types=types) for name, (types, why) in WITHOUT_MEANING.items())),
)
