"""The arguments of `PPOTrainer` as keys of the dialect; its four models by their files or in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Said
from oncurve.compat.trl.arguments import policy_told
from oncurve.compat.trl.dialect import Told
from oncurve.compat.trl.peft_keys import given_fields, lora_of
from oncurve.compat.trl.ppo_config import PPOConfig
from oncurve.compat.trl.ppo_sizes import ppo_rows_known
from oncurve.run import Run

PLACE = "PPOTrainer"
TOKENS, TEXT = "input_ids", "prompt"
BY_TYPE = ("processing_class", "ref_model", "value_model", "data_collator", "callbacks")
"""Arguments that a recipe names by their type."""


def ppo_said_by(arguments: Mapping[str, Any], args: PPOConfig) -> dict[str, Said]:
    """The dialect's keys for the given arguments. Raises ConfigError: an argument that cannot be."""
    model = arguments["model"]
    told: dict[str, Any] = {
        "model": policy_told(model),
        "reward_model": _reward(arguments["reward_model"]),
        "train_dataset": _rows(arguments["train_dataset"]),
    }
    check_begins_as(model, arguments["ref_model"], "ref_model", "the reference is the policy as it begins")
    check_begins_as(
        model, arguments["value_model"], "value_model", "the critic begins as the policy, with a value head"
    )
    if arguments["eval_dataset"] is not None:
        told["eval_dataset"] = _held_out(arguments["eval_dataset"])
    if arguments["peft_config"] is not None:
        told["peft_config"] = Told("LoraConfig", lora_of(given_fields(arguments["peft_config"])))
    rest = {name: value for name, value in arguments.items() if name not in (*told, "args") and value is not None}
    rest |= {name: _name_of(rest[name]) for name in BY_TYPE if name in rest}
    said = {f"PPOTrainer.{name}": Said(value, PLACE) for name, value in {**told, **rest}.items()}
    known = ppo_rows_known(args.values(), len(arguments["train_dataset"]))
    return said | {name: Said(value, PLACE) for name, value in known.items()}


def _name_of(value: Any) -> str:
    return str(value) if isinstance(value, (str, Path)) else type(value).__name__


def source_of(model: Any) -> str:
    """The folder or hub id of a model: of one in memory that of which it was loaded; "": not known."""
    if isinstance(model, (str, Path)):
        return str(model)
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def _reward(model: Any) -> Told:
    if not isinstance(model, (str, Path, nn.Module)):
        raise ConfigError(f"reward_model: expected a folder, a hub id or a sequence classifier, got {shown(model)}")
    path = source_of(model)
    if not path:
        raise ConfigError(
            f"reward_model: the {type(model).__name__} does not say where it came from; save it with its tokenizer by "
            "save_pretrained, and give the folder"
        )
    return Told(path, {"rewards": [{"kind": "model", "path": path, "name": "score"}]})


def _rows(data: Any) -> Told:
    if data is None:
        raise ConfigError(f"train_dataset: missing; give a data set with a column {TOKENS!r} or {TEXT!r}")
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or isinstance(data, (str, Mapping)):
        raise ConfigError(f"train_dataset: expected a Dataset or a list of rows, got {shown(data)}")
    if not len(data):
        raise ConfigError("train_dataset: it has no rows")
    settings = {"data.kind": "list", "data.rows": data, "data.chat": "never"}
    if isinstance(data[0], Mapping) and TOKENS in data[0]:
        settings["data.prompt_column"] = TOKENS
    return Told(type(data).__name__, settings)


def _held_out(data: Any) -> Told:
    if isinstance(data, Mapping):
        names = ", ".join(map(repr, data))
        raise ConfigError(f"eval_dataset: several data sets ({names}) are not available; give one of them")
    return Told(type(data).__name__, {"data.eval_rows": data})


def check_begins_as(policy: Any, other: Any, name: str, why: str) -> None:
    """Raises ConfigError: `other` has other weights than the policy.

    Of two models in memory the weights are compared, of a value model but for the head; where one is a folder or hub
    id, the names.
    """
    fix = f"leave {name} out (None), or give the same model"
    if other is None:
        return
    if name == "ref_model" and other is policy:
        raise ConfigError("ref_model: it is the model itself, as which TRL refuses it too; leave it out (None)")
    if isinstance(policy, nn.Module) and isinstance(other, nn.Module):
        pair = (policy, other) if name == "ref_model" else (backbone_of(policy), backbone_of(other))
        if not same_weights(*pair):
            raise ConfigError(f"{name}: its weights are not those of model, and {why}; {fix}")
    elif not isinstance(other, (str, Path, nn.Module)):
        raise ConfigError(f"{name}: expected a folder, a hub id or a torch module, got {shown(other)}")
    elif source_of(other) != source_of(policy):
        raise ConfigError(f"{name}: it is of {source_of(other)!r}, and model of {source_of(policy)!r}: {why}; {fix}")


def backbone_of(model: nn.Module) -> nn.Module:
    """A model without its head, where transformers calls it so."""
    return getattr(model, str(getattr(model, "base_model_prefix", "")), model)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether both have the same parameters, compared in the smaller of their types."""
    first, second = dict(one.named_parameters()), dict(other.named_parameters())
    if first.keys() != second.keys():
        return False
    for name, weight in first.items():
        there = second[name]
        kind = min(weight.dtype, there.dtype, key=lambda dtype: dtype.itemsize)
        if weight.shape != there.shape or not torch.equal(weight.to(kind).cpu(), there.to(kind).cpu()):
            return False
    return True


def check_reward_model(run: Run, model: Any) -> None:
    """Raises ConfigError: the reward model in memory has other weights than its files, which score the completions."""
    if not isinstance(model, nn.Module):
        return
    loaded: Any = next(each.runner for each in run.rewards.components if each.name == "score")
    if not same_weights(loaded.classifier.module, model):
        raise ConfigError(
            f"reward_model: its weights are not those of {source_of(model)}; save it with its tokenizer by "
            "save_pretrained, and give the folder"
        )
