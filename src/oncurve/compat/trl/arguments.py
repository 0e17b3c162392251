"""The arguments of `GRPOTrainer` as settings and objects, and the run that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Said, Translation
from oncurve.compat.loading import config_of
from oncurve.compat.trl.config import GRPOConfig
from oncurve.compat.trl.dialect import Told
from oncurve.compat.trl.peft_keys import given_fields, lora_of
from oncurve.compat.trl.reward_functions import reward_settings
from oncurve.compat.trl.run_keys import rows_known
from oncurve.compat.trl.sizes import sizes
from oncurve.config import RunConfig, check_complete
from oncurve.display import Screen, say
from oncurve.forecast import check_memory
from oncurve.models import LoadedModel
from oncurve.models.loading import eos_ids_of, loaded_from, quiet
from oncurve.run import Overrides, Run, assemble, environment_arguments

BY_TYPE = ("processing_class", "reward_processing_classes", "callbacks")
"""Arguments that a recipe names by their type."""


def translated(
    arguments: Mapping[str, Any], args: GRPOConfig, state: Callable[[], Any], tokenizers: Sequence[Any]
) -> Translation:
    """Return the settings of a run for the trainer's arguments, by their names.

    `state` gives reward functions their `trainer_state`, and `tokenizers` are those of the rewards. Raises ConfigError:
    an argument that cannot be.
    """
    train, held_out, model = (arguments[name] for name in ("train_dataset", "eval_dataset", "model"))
    environment = environment_arguments(arguments["environment_factory"], arguments["tools"])
    rewards = reward_settings(
        arguments["reward_funcs"], args.reward_weights, state, tokenizers, arguments["environment_factory"] is not None
    )
    if train is None and callable(arguments["environment_factory"]):  # which asks
        train = [{"prompt": ""}] * (args.generation_batch_size // args.num_generations)
    if environment:
        several = isinstance(held_out, Mapping)
        train = _asked(train)
        held_out = {name: _asked(each) for name, each in held_out.items()} if several else _asked(held_out)
    told: dict[str, Any] = {
        "model": _policy(model),
        "reward_funcs": Told("reward_funcs", {"rewards": rewards}),
        "train_dataset": Told(type(train).__name__, _rows(train, args)),
    }
    if held_out is not None:
        told["eval_dataset"] = Told(type(held_out).__name__, {"data.eval_rows": all_rows(held_out)})
    if arguments["peft_config"] is not None:
        told["peft_config"] = Told("LoraConfig", lora_of(given_fields(arguments["peft_config"])))
    if environment:
        limit = args.max_tool_calling_iterations
        turns = {"environment.max_turns": 10**6 if limit is None else limit + 1}
        given = dict(environment)
        for name in ("tools", "environment_factory"):
            if arguments[name]:
                told[name] = Told(shown(arguments[name]), given | turns)
                given = turns = {}
    for name, value in arguments.items():
        if name not in (*told, "args") and value is not None and value != (None, None):
            told[name] = type(value).__name__ if name in BY_TYPE else value
    said = {f"GRPOTrainer.{name}": Said(value, "GRPOTrainer") for name, value in told.items()}
    if hasattr(train, "__len__"):
        known = rows_known(args.values(), len(told["train_dataset"].settings["data.rows"]))
        said |= {name: Said(value, "GRPOTrainer") for name, value in known.items()}
    translation = args.translated(**said)
    return translation if isinstance(model, (str, Path)) else _without_loading(translation)


def _asked(rows: Any) -> Any:
    """Return rows for an environment, which asks where they have no prompt: TRL's is an empty message then."""
    if rows is None or not hasattr(rows, "__len__"):
        return rows
    empty = [{"role": "user", "content": ""}]
    return [row if row.get("prompt") else {**row, "prompt": empty} for row in rows]


def _policy(model: Any) -> Told:
    if isinstance(model, (str, Path)):
        return Told(str(model), {"model.path": str(model)})
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a folder, a hub id or a torch module, got {shown(model)}")
    return Told(type(model).__name__, {"model.path": ""})


def _without_loading(translation: Translation) -> Translation:
    """Leave out the settings of loading: a module is used as it is."""
    lines = []
    for line in translation.lines:
        kept = {name: value for name, value in line.settings.items() if not name.startswith("model.")}
        lines.append(replace(line, settings=kept | ({"model.path": ""} if "model.path" in line.settings else {})))
    return replace(translation, lines=tuple(lines))


def _rows(train: Any, args: GRPOConfig) -> dict[str, Any]:
    if train is None:
        raise ConfigError("train_dataset: missing; `train_dataset` is required: a data set with a column 'prompt'")
    if hasattr(train, "__len__"):
        if not len(train):
            raise ConfigError("train_dataset: it has no rows")
        return {"data.kind": "list", "data.rows": train}
    if args.max_steps <= 0:
        raise ConfigError("train_dataset: of an iterable data set the length is not known; give max_steps")
    found = sizes(args.values())
    rows = list(islice(train, found.steps(args.max_steps) * found.prompts))
    return {"data.kind": "list", "data.rows": rows, "data.shuffle": False}


def all_rows(held_out: Any) -> Any:
    """Return the rows of one data set as they are, and those of a dict of several one set after the other."""
    return [row for each in held_out.values() for row in each] if isinstance(held_out, Mapping) else held_out


def assembled(translation: Translation, model: Any, processing_class: Any, args: GRPOConfig) -> Run:
    """Check and load everything. Raises ConfigError, and UserErrors of data, model and rewards."""
    config, _ = config_of(translation)
    override = _loaded(model, processing_class, config, args)
    check_complete(config, model_given=override is not None)
    if override is None:
        say(Screen(), *check_memory(config))
    config.data.check_keepable()
    try:
        run: Run = assemble(config, None, Overrides(override))
    except ConfigError as error:
        raise ConfigError(translation.explained(str(error))) from None
    try:
        _check_router(run, args)
    except ConfigError:
        run.close()
        raise
    return run


def _loaded(model: Any, processing_class: Any, config: RunConfig, args: GRPOConfig) -> LoadedModel | None:
    """Return the model where an object is given; None: the run loads it by its path.

    Raises ConfigError: a processor of images, or a module without a tokenizer that could be found.
    """
    if processing_class is not None and not hasattr(processing_class, "get_vocab"):
        raise ConfigError(
            f"processing_class: expected a tokenizer, got a {type(processing_class).__name__}; images are not available"
        )
    if isinstance(model, nn.Module):
        if torch.cuda.is_available() and not args.use_cpu:
            model.to("cuda")
        return loaded_from(model, processing_class or _tokenizer_of(model))
    if processing_class is None:
        return None
    built = config.model.on_this_machine().build(masters=True)
    eos_ids = eos_ids_of(built.model.module, processing_class)
    return replace(built, tokenizer=processing_class, eos_ids=eos_ids)


def _tokenizer_of(model: nn.Module) -> Any:
    """Return the tokenizer next to the files that a module was loaded from."""
    source = getattr(getattr(model, "config", None), "_name_or_path", "")
    if not source:
        raise ConfigError("processing_class: the module does not say where it came from; give its tokenizer")
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # of several libraries
        raise ConfigError(f"processing_class: {source} has no tokenizer ({error}); give one") from error


def _check_router(run: Run, args: GRPOConfig) -> None:
    """Raise ConfigError: TRL would add the load-balancing loss of a mixture of experts, which is not available."""
    config: Any = getattr(run.loaded.model.module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    coef = getattr(text, "router_aux_loss_coef", 0.0) if args.router_aux_loss_coef is None else 0.0
    if hasattr(text, "output_router_logits") and coef:
        raise ConfigError(
            f"model: TRL adds {coef:g} times the load-balancing loss to that of a mixture of experts; it is not "
            "available: write router_aux_loss_coef=0.0 to train without it"
        )


def check_one_process() -> None:
    """Raise ConfigError: the script was started as one of several processes."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count not in ("", "0", "1"):
        raise ConfigError(
            f"WORLD_SIZE={count}: the script is one process; start it with python, not with accelerate launch or "
            "torchrun. Several processes are a setting of a recipe: [cluster]"
        )
