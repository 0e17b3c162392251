"""verl's `actor_rollout_ref.rollout.*` and `actor_rollout_ref.model.*`: sampling, evaluation, the model, LoRA."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.data import evaluates
from oncurve.compat.verl.rows import (
    MODEL,
    NUMBER,
    OR_NONE,
    ROLLOUT,
    TEXT,
    WHOLE,
    YES_OR_NO,
    either,
    local,
    refused,
)

VAL = f"{ROLLOUT}.val_kwargs"
SAMPLED = "the learner trains on the distribution that was sampled from, whole; leave it out"
WHOLE_DISTRIBUTION = "the samples of an evaluation come from the whole distribution, so its figures may be lower"
LORA = f"{MODEL}.lora"


def _sampled(values: Values) -> bool:
    return evaluates(values) and values[f"{VAL}.do_sample"] and values[f"{VAL}.temperature"] != 0


def _samples(_: Any, values: Values) -> dict[str, Any]:
    return {"eval.n": values[f"{VAL}.n"]} if _sampled(values) else {}


def _eval_temperature(temperature: Any, values: Values) -> dict[str, Any]:
    return {"eval.temperature": temperature} if _sampled(values) else {}


def rank_of(values: Values) -> int:
    """The rank of the adapter; 0: there is none."""
    return int(values[f"{LORA}.rank"] or values[f"{MODEL}.lora_rank"] or 0)


def _new_adapter(values: Values) -> bool:
    path = either(values, f"{MODEL}.lora_adapter_path", f"{LORA}.adapter_path")
    return rank_of(values) > 0 and path is None


def _if_adapter(setting: str) -> Any:
    return lambda value, values: {setting: value} if _new_adapter(values) else {}


def _adapter(path: Any, values: Values) -> dict[str, Any]:
    return {} if path is None else {"lora.path": local(path)}


def _targets(names: Any, values: Values) -> dict[str, Any]:
    if not _new_adapter(values):
        return {}
    if isinstance(names, list) and not all(isinstance(name, str) for name in names):
        raise ConfigError(f"expected names of layers, got {shown(names)}")
    return {"lora.targets": names if names == "all-linear" or isinstance(names, list) else [names]}


def _overridden(table: Any, values: Values) -> dict[str, Any]:
    known = {"attn_implementation", "max_position_embeddings"}
    inner = table.get("model_config") or {}
    for name, value in {**table, **inner}.items():
        if name in ("model_config", "moe_config") and not any(value.values() if name == "moe_config" else ()):
            continue
        no_dropout = name.endswith(("dropout", "pdrop")) and value == 0
        if name not in known and not no_dropout:
            raise ConfigError(f"{name}: the model is run as its config.json says; change it there")
    return {}


KEYS: tuple[Key, ...] = (
    Key(f"{ROLLOUT}.n", ("rollout.group_size",), default=1, applied=True, types=WHOLE),
    Key(
        "actor_rollout.ref.rollout.n",
        ("rollout.group_size",),
        f"as verl's page of GRPO once wrote {ROLLOUT}.n",
        types=WHOLE,
    ),
    Key(f"{ROLLOUT}.temperature", ("rollout.temperature",), default=1.0, types=NUMBER),
    refused(f"{ROLLOUT}.top_p", SAMPLED, 1, 1.0),
    refused(f"{ROLLOUT}.top_k", SAMPLED, -1, 0),
    refused(f"{ROLLOUT}.min_p", SAMPLED, 0, 0.0),
    refused(f"{ROLLOUT}.repetition_penalty", SAMPLED, 1, 1.0),
    refused(f"{ROLLOUT}.do_sample", "a group of greedy completions is one completion; set it to True", True),
    refused(f"{ROLLOUT}.ignore_eos", "a completion ends at the model's end token; set it to False", False),
    Key(f"{ROLLOUT}.max_num_seqs", ("rollout.max_concurrent",), default=256, types=WHOLE),
    Key(f"{ROLLOUT}.prompt_length", ("data.max_prompt_tokens",), types=WHOLE),
    Key(f"{ROLLOUT}.response_length", ("rollout.max_new_tokens",), types=WHOLE),
    Key(
        f"{VAL}.do_sample",
        ("eval.n",),
        "greedy completions are always evaluated; True adds samples",
        _samples,
        default=False,
        types=YES_OR_NO,
    ),
    Key(
        f"{VAL}.n",
        ("eval.n",),
        "samples per prompt, with val_kwargs.do_sample=True",
        _samples,
        default=1,
        types=WHOLE,
    ),
    Key(
        f"{VAL}.temperature",
        ("eval.temperature",),
        "with val_kwargs.do_sample=True",
        _eval_temperature,
        default=0,
        types=NUMBER,
    ),
    Key(f"{VAL}.top_p", (), WHOLE_DISTRIBUTION),
    Key(f"{VAL}.top_k", (), WHOLE_DISTRIBUTION),
    refused(f"{ROLLOUT}.multi_turn.enable", "a rollout is one completion; set it to False", False),
    refused(f"{ROLLOUT}.agent.agent_loop_config_path", "a rollout is one completion; leave it out", None),
    Key(
        f"{MODEL}.path",
        ("model.path",),
        make=lambda path, values: {"model.path": local(path)},
        default="~/models/deepseek-llm-7b-chat",
        applied=True,
        types=TEXT,
    ),
    Key(f"{MODEL}.trust_remote_code", ("model.trust_remote_code",), default=False, types=YES_OR_NO),
    Key(
        f"{MODEL}.enable_gradient_checkpointing",
        ("learner.gradient_checkpointing",),
        "on by default in verl, off in oncurve: less memory for a third more work, the same result",
        default=True,
        applied=True,
        types=YES_OR_NO,
    ),
    Key(f"{MODEL}.lora_rank", ("lora.rank",), "0 is no adapter", _if_adapter("lora.rank"), 0, types=WHOLE),
    Key(f"{LORA}.rank", ("lora.rank",), "0 is no adapter", _if_adapter("lora.rank"), 0, types=WHOLE),
    Key(
        f"{MODEL}.lora_alpha",
        ("lora.alpha",),
        "with lora_rank above 0",
        _if_adapter("lora.alpha"),
        default=16,
        applied=True,
        types=NUMBER,
    ),
    Key(f"{LORA}.alpha", ("lora.alpha",), "with lora.rank above 0", _if_adapter("lora.alpha"), 32, types=NUMBER),
    Key(
        f"{MODEL}.target_modules",
        ("lora.targets",),
        "with lora_rank above 0; a single name is a list of one",
        _targets,
        default="all-linear",
        types=(*TEXT, list),
    ),
    Key(f"{LORA}.target_modules", ("lora.targets",), "with lora.rank above 0", _targets, types=(*TEXT, list)),
    Key(f"{MODEL}.lora_adapter_path", ("lora.path",), "its rank and α are its own", _adapter, types=(*TEXT, *OR_NONE)),
    Key(f"{LORA}.adapter_path", ("lora.path",), "its rank and α are its own", _adapter, types=(*TEXT, *OR_NONE)),
    refused(f"{MODEL}.exclude_modules", "name the layers that are adapted, in target_modules", None, []),
    refused(f"{LORA}.exclude_modules", "name the layers that are adapted, in target_modules", None, []),
    refused(f"{LORA}.dropout", "with dropout the learner's log-probs are not the sampler's; set it to 0", 0, 0.0),
    refused(f"{LORA}.type", "the adapter is LoRA's; leave it out", "lora"),
    refused(f"{MODEL}.custom_chat_template", "put the template into the model's tokenizer_config.json", None),
    refused(f"{MODEL}.external_lib", "no module is imported for it; trust_remote_code runs the model's own code", None),
    refused(f"{MODEL}.tokenizer_path", "the tokenizer is the model's; put it into the model's folder", None),
    refused(f"{MODEL}.hf_config_path", "the config.json is the model's; put it into the model's folder", None),
    Key(
        f"{MODEL}.override_config",
        ("model.path",),
        "positions up to the model's own, no dropout; attention is chosen by model.attention",
        _overridden,
        default={},
        types=(dict,),
    ),
    refused(f"{MODEL}.mtp.enable", "there is no multi-token prediction; set it to False", False),
    refused("actor_rollout_ref.actor.freeze_vision_tower", "models are of text; leave it out", False),
)
