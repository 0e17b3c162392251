"""The arguments of `GRPOTrainer` as settings and objects, and the run that they make.

The forms of `reward_funcs` are rewards of the run: functions of TRL's signature, and reward models by path.
"""

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from transformers import AutoTokenizer

from oncurve.base.errors import ConfigError, RewardError, shown
from oncurve.compat.dialect import Said, Translation
from oncurve.compat.recipe import config_of
from oncurve.compat.trl.config import GRPOConfig, Told
from oncurve.compat.trl.parsing import given_fields, lora_of
from oncurve.compat.trl.rewards import BY_PATH
from oncurve.compat.trl.run_keys import rows_known, sizes
from oncurve.config import RunConfig, check_complete
from oncurve.display import Screen, say
from oncurve.forecast import check_memory
from oncurve.models import LoadedModel
from oncurve.models.loading import apply_template, eos_ids_of, loaded_from, quiet
from oncurve.rewards import Accepts, InProcess, RewardSettings, later, name_of, trl_arguments
from oncurve.run import Overrides, Run, assemble, environment_arguments


class Function(RewardSettings):
    """A reward function of TRL's, called in this process with all that TRL gives it, one call per step.

        function(prompts=, completions=, completion_ids=, <every column>=, trainer_state=, log_extra=, log_metric=)

    It returns a number, or None where it does not apply, per completion; NaN is None. What it raises ends the run, as
    in TRL. A coroutine function is awaited.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False

    function: Any = Field(exclude=True, repr=False)
    """The function."""

    state: Any = Field(exclude=True, repr=False)
    """A function of no arguments that gives `trainer_state`."""

    on_error: Literal["mask", "raise"] | float = "raise"
    """What a value that is no number means."""

    @property
    def default_name(self) -> str:
        """The name of the function, or of its class; "reward" for a lambda."""
        return name_of(self.function)

    def start(self, base: Path | None) -> InProcess:
        """Return the runner, in this process."""
        takes = ("prompts", "completions", "completion_ids", *(["environments"] if self._looks_at_them() else []))
        accepts = Accepts(batch=True, takes=takes, everything=True)
        return InProcess(self._call, accepts, "reward_funcs are called as TRL calls them")

    def _looks_at_them(self) -> bool:
        """Return whether the function names environments among its parameters, or in its code."""
        code = getattr(self.function, "__code__", None)
        with suppress(TypeError, ValueError):
            return "environments" in (*inspect.signature(self.function).parameters, *getattr(code, "co_consts", ()))
        return False

    def _call(self, item: Mapping[str, Any]) -> Any:
        metrics: dict[str, list[float]] = {}
        extras: dict[str, list[Any]] = {}
        given = {**item["columns"], **trl_arguments(item, self.state(), metrics, extras)}
        if not given["environments"]:
            del given["environments"]

        def finish(values: Any) -> dict[str, Any]:
            return {"rewards": [_value(value) for value in values], "metrics": metrics, "extras": extras}

        try:
            values = self.function(**given)
            return later(self._finished(values, finish) if inspect.isawaitable(values) else finish(values), dict)
        except Exception as error:  # user code may raise anything
            raise self._failed(error) from error

    async def _finished(self, values: Awaitable[Any], finish: Callable[[Any], Any]) -> Any:
        try:
            return finish(await values)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> RewardError:
        return RewardError(f"reward {self.default_name} failed: {type(error).__name__}: {error}")


class LoadedClassifier:
    """A reward model in memory as a reward function: its one logit at the end of prompt and completion."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, source = model.eval(), getattr(model.config, "_name_or_path", "")
        self.__name__ = Path(source).name.replace("-", "_").replace(".", "_") or type(model).__name__
        if tokenizer is None and not source:
            raise ConfigError(f"reward_processing_classes: missing; give the tokenizer of the {type(model).__name__}")
        self.tokenizer = tokenizer or AutoTokenizer.from_pretrained(source)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        model.config.pad_token_id = self.tokenizer.pad_token_id  # the model reads the logit before the padding

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **others: Any) -> list[float]:
        """Return the logits; of messages, those of their chat."""
        texts = [
            prompt + said
            if isinstance(prompt, str)
            else apply_template(self.tokenizer, [*prompt, *said], f"{self.__name__}: the")
            for prompt, said in zip(prompts, completions, strict=True)
        ]
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
        with torch.inference_mode():
            logits = self.model(**batch.to(self.model.device)).logits[:, 0]
        return [float(value) for value in logits]


def _value(value: Any) -> Any:
    """Return a reward as TRL reads it: NaN is None, does not apply."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def reward_settings(
    reward_funcs: Any,
    weights: Sequence[float] | None,
    state: Callable[[], Any],
    tokenizers: Sequence[Any],
    optional: bool = False,
) -> list[dict[str, Any] | RewardSettings]:
    """Return `reward_funcs` as the rewards of a run; functions get `state()` as `trainer_state`.

    `tokenizers`: of the models in memory among them. `optional`: an environment may give the reward.

    Raises ConfigError: there is none, a form that TRL does not take, or another number of weights.
    """
    listed = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    listed = [] if reward_funcs is None else listed
    if not listed and not optional:
        raise ConfigError("reward_funcs: No reward source provided; give a function, a reward model, or a list")
    if weights is not None and len(weights) != len(listed):
        raise ConfigError(f"reward_weights has {len(weights)} weights for {len(listed)} reward_funcs; give as many")
    given = zip(listed, weights or [1.0] * len(listed), tokenizers[: len(listed)], strict=True)
    return [_settings(each, weight, state, tokenizer) for each, weight, tokenizer in given]


def _settings(reward: Any, weight: float, state: Callable[[], Any], tokenizer: Any) -> dict[str, Any] | RewardSettings:
    if isinstance(reward, (str, Path)):
        return {"kind": "model", "path": str(reward), "weight": weight, "name": Path(reward).name}
    if hasattr(reward, "forward") and hasattr(reward, "config"):  # a transformers model
        reward = LoadedClassifier(reward, tokenizer)
    if inspect.isfunction(reward) and reward in BY_PATH:
        return {"kind": "python", "path": BY_PATH[reward], "weight": weight, "timeout_seconds": 600.0}
    if not callable(reward):
        raise ConfigError(f"reward_funcs: expected a function, or a model's folder or hub id; got {shown(reward)}")
    return Function(function=reward, state=state, weight=weight)


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
    rows = list(islice(train, math.ceil(args.max_steps / found.updates) * found.prompts))
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
