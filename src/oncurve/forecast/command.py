"""`oncurve plan`: what a run will hold and how long its steps will take, before anything is loaded.

Only the model's configuration is read, and of the data as many prompts as say how long they are. The seconds on this
machine come from a rehearsal with arbitrary weights; those on a machine that is named come from formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from oncurve.advantages import needs_of
from oncurve.base.errors import ConfigError, ModelError, UserError
from oncurve.base.paths import usable_path
from oncurve.config import RunConfig
from oncurve.forecast.adapters import rehearsed, with_adapter
from oncurve.forecast.cluster import Layout, on_one_host
from oncurve.forecast.counting import floors
from oncurve.forecast.machines import AvailableMemory, Machine, machine, memory_here
from oncurve.forecast.meter import MemoryMeter, measure_machine, tidy
from oncurve.forecast.outlook import Forecast, Variant, suggestions
from oncurve.forecast.rehearsal import Parts, some_advantage
from oncurve.forecast.request import ForecastRequest, Sizes, with_flags
from oncurve.forecast.scaling import rehearse_and_scale
from oncurve.forecast.shapes import MODELS, ModelShape, Work, named_shape, parse_parameters, shape_of, shape_of_size
from oncurve.forecast.unloaded import (
    ASSUMED_PROMPT,
    prompt_lengths,
    read_model_config,
    reward_model_bytes,
    teacher_bytes,
)
from oncurve.forecast.variants import count_parameters
from oncurve.learner import gives_values
from oncurve.machine.threads import prepare_process
from oncurve.models.loading import said_by

UNIMPORTED = 150e6
"""What a process still takes for libraries and their first use after the commands have been imported."""

CONTEXT = 600e6
"""What CUDA and its libraries take of a card before the first tensor."""

REFUSED = 1.15
"""A run is refused where the formulas say so many times what is there: they are that far off at most, mostly above."""


def forecast_command(
    config: RunConfig,
    base: Path,
    name: str,
    model: str | None,
    parameters: str | None,
    sizes: Sizes,
    named: tuple[str | None, str | None, float | None, str | None],
    say: Callable[[str], None],
) -> Forecast:
    """The forecast that the command's words mean; `named` is a machine's name, memory, TFLOP/s and bandwidth.

    `name` is what the configuration was made of. Raises UserError, see `forecast`.
    """
    shape = asked_shape(model, parameters)
    place = machine(*named) if any(value is not None for value in named) else None
    subject = model or (f"{parameters} parameters" if parameters is not None else config.model.path)
    title = f"{name}: {subject}" + (f" on {place.name}" if place is not None else "")
    return forecast(config, base, ForecastRequest(sizes, shape, place), title, say)


def asked_shape(model: str | None, parameters: str | None) -> ModelShape | None:
    """The shape that `--model` (a name, or a model's folder or hub id) or `--parameters` mean.

    Raises ConfigError: both, an unknown name, an impossible number.
    """
    if model is not None and parameters is not None:
        raise ConfigError("--model and --parameters both say what the model is; give one of them")
    if parameters is not None:
        return shape_of_size(parse_parameters(parameters))
    if model is None:
        return None
    if model.lower() in MODELS or not (usable_path(model, "--model").exists() or "/" in model):
        return named_shape(model)
    found = read_model_config(model)
    return shape_of(found, count_parameters(found))


def forecast(
    config: RunConfig,
    base: Path | None,
    asked: ForecastRequest,
    title: str,
    say: Callable[[str], None] = lambda line: None,
) -> Forecast:
    """The forecast of a run, or of a shape on a machine. `say` is called with progress messages.

    Raises UserError: no model, or one that cannot be read; data that cannot be read, where no lengths
    of prompts are given; sizes that cannot be.
    """
    given, model, shape, work, notes = studied(config, base, asked)
    if asked.machine is None and model is not None:
        return _here(given, model, shape, work, title, notes, say)
    return _by_formula(given, shape, work, asked.machine, title, notes)


def studied(
    config: RunConfig, base: Path | None, asked: ForecastRequest
) -> tuple[RunConfig, Any, ModelShape, Work, list[str]]:
    """The run with the command line's sizes, its model's configuration (None: a shape alone), shape and work; notes.

    Raises what `forecast` raises.
    """
    given = with_flags(config, asked)
    if asked.shape is None and not config.model.path:
        raise ConfigError(
            "no model: name a recipe that has one, set model.path=FOLDER, or give --model qwen2.5-7b or --parameters 7B"
        )
    trusted = config.model.trust_remote_code
    model = read_model_config(config.model.source(weights=False), trusted) if asked.shape is None else None
    shape = with_adapter(asked.shape or shape_of(model, count_parameters(model)), config.lora, model)
    given, shortened = _within(given, shape) if asked.shape is not None else (given, [])
    fits = _room_for_prompts(given, shape)
    lengths, notes = prompt_lengths(given, base, asked.sizes.prompt_tokens, known_data=asked.shape is None, fits=fits)
    _check_positions(shape, max(lengths), given.rollout.max_new_tokens)
    notes = [*shortened, *notes, *_outside(given)]
    return given, model, shape, _work(given, lengths), notes


def _outside(config: RunConfig) -> list[str]:
    """Notes where the learner is not the built-in one, and where a step may sample several rounds of prompts."""
    notes = []
    if config.filter.dynamic_sampling:
        notes.append(
            "the step time is that of one round of sampling; with filter.dynamic_sampling a step may have "
            f"{config.filter.max_rounds}"
        )
    if not config.learner.built_in:
        name = type(config.learner).__name__
        notes.append(f"the forecast is of the built-in learner with these settings: the needs of {name} are not known")
    return notes


def _within(config: RunConfig, shape: ModelShape) -> tuple[RunConfig, list[str]]:
    """For a shape alone: a length of completions that was left to its default, brought within the model's positions."""
    usual = type(config.rollout).model_fields["max_new_tokens"].default
    if shape.positions is None or config.rollout.max_new_tokens != usual or usual < shape.positions:
        return config, []
    fewer = max(1, shape.positions // 2)
    rollout = config.rollout.model_copy(update={"max_new_tokens": fewer})
    return config.model_copy(update={"rollout": rollout}), [
        f"completions are taken to have {fewer} tokens (--completion-tokens)"
    ]


def _room_for_prompts(config: RunConfig, shape: ModelShape) -> int | None:
    """The tokens that a prompt may have with a whole completion after it. Raises ConfigError where none are left."""
    if shape.positions is None:
        return None
    _check_positions(shape, 1, config.rollout.max_new_tokens)
    return shape.positions + 1 - config.rollout.max_new_tokens


def _check_positions(shape: ModelShape, prompt: int, completion: int) -> None:
    """Raises ConfigError where a prompt and a completion of so many tokens are more than the model takes.

    The last token is never fed, so that P positions take P + 1 tokens.
    """
    if shape.positions is not None and prompt + completion > shape.positions + 1:
        room = shape.positions + 1 - prompt
        fix = f"set rollout.max_new_tokens (--completion-tokens) to {room} or less, or " if room > 0 else ""
        raise ConfigError(
            f"rollout.max_new_tokens: prompts of {prompt:,} tokens and completions of {completion:,} are "
            f"{prompt + completion:,} together, and the model was made for {shape.positions:,} positions; "
            f"{fix}shorten the prompts"
        )


def _work(config: RunConfig, lengths: tuple[int, ...]) -> Work:
    return Work(
        config.data.prompts_per_step,
        config.rollout.group_size,
        config.rollout.max_new_tokens,
        lengths,
        config.rollout.max_concurrent,
        config.learner.tokens_per_micro_batch,
        config.learner.minibatches,
        config.learner.ppo_epochs,
        config.filter.top_entropy < 1 or (not config.stays_at_1 and config.old_logprobs == "recompute"),
    )


def variant_of(config: RunConfig, shape: ModelShape, work: Work, dtype: str, on_cpu: bool, process: float) -> Variant:
    """What of a run's settings determines its peak. `process`: bytes before the model is loaded."""
    return Variant(
        shape,
        work,
        dtype,
        config.learner.moments,
        config.learner.masters,
        bool(config.kl.coef),
        config.learner.gradient_checkpointing,
        on_cpu,
        process,
        gives_values(config.critic),
        config.reference.every > 0 and config.reference.mixup_alpha < 1,
        reward_model_bytes(config),
        teacher=teacher_bytes(config, dtype),
        held=not config.lora.adapted or config.lora.path is not None or config.following.every > 0,
        offloaded=config.cluster.offload,
        exact_kl="full_kl" in config.policy_term.needs | config.regularizer.needs,
        moving=config.reference.every > 0,
        quantized=config.model.quantization is not None,
        whole_weights=config.cluster.divided or config.cluster.served,
    )


def _here(
    config: RunConfig,
    model: Any,
    shape: ModelShape,
    work: Work,
    title: str,
    notes: list[str],
    say: Callable[[str], None],
) -> Forecast:
    """On this machine: measured."""
    prepare_process(config.run.threads)
    dtype, _ = config.model.precision()
    device = device_of(config)
    precision = torch.float32 if dtype == "float32" else torch.bfloat16
    room = _room(device)
    meter = MemoryMeter(device)
    before = meter.now()
    say(f"measuring this machine (threads: {torch.get_num_threads()}, {dtype})")
    parts = Parts(
        model,
        config.rollout,
        config.learner,
        config.objective,
        config.regularizer,
        some_advantage if needs_of(config.advantage) & {"values", "teacher"} else config.advantage,
        config.token_weights,
        precision,
        device,
        config.model.attention,
        rehearsed(config.lora, shape),
    )
    variant = variant_of(config, shape, work, dtype, device.type == "cpu", 0.0)
    try:
        machine = measure_machine(shape, precision, device, room.total)
        found = rehearse_and_scale(parts, shape, work, variant.footprint, machine, variant.checkpointing, say)
    except (UserError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise ModelError(
            f"{config.model.path}: a small model of this configuration does not run here, so a step of it cannot be "
            f"timed; check its config.json, or plan it on a card: --machine h100{said_by(error)}"
        ) from error
    tidy()
    room = _room(device)
    process = float(max(before, meter.now())) if device.type == "cpu" else CONTEXT
    variant = replace(variant, process=process)
    memory = variant.memory(found.activations, found.training)
    seconds = {**found.seconds}
    seconds["step"] = sum(value for name, value in seconds.items() if name != "decode_step")
    notes = [*notes, found.path_reason]
    if variant.critic:
        notes.append("what the critic's values and updates take is not in the step time")
    if variant.teacher:
        notes.append("what the teacher's scoring takes is not in the step time")
    if config.iterative.steps:
        notes.append("what the reward model's training takes between iterations is not in the step time")
    if not found.whole:
        notes.append("the model is too large to be rehearsed whole: a layer and the head were, and were scaled")
    if config.rewards:
        notes.append("reward workers are processes of their own: their memory and time are not counted")
    plan = Forecast(title, shape, work, variant.footprint, memory, room, seconds, True, machine, (), tuple(notes))
    return _of_all_processes(plan, config, variant)


def _by_formula(
    config: RunConfig, shape: ModelShape, work: Work, machine: Machine | None, title: str, notes: list[str]
) -> Forecast:
    """On a machine that is named, or here where there is no configuration to rehearse: by formula."""
    if machine is None:
        device = device_of(config)
        dtype, _ = config.model.precision()
        room = _room(device)
        precision = torch.float32 if dtype == "float32" else torch.bfloat16
        machine = measure_machine(shape, precision, device, room.total)
        on_cpu = device.type == "cpu"
        process = float(MemoryMeter(device).now()) + UNIMPORTED if on_cpu else CONTEXT
    else:
        dtype = machine.dtype if config.model.dtype == "auto" else config.model.dtype
        room = AvailableMemory(machine.memory, machine.memory, f"memory of {machine.name}")
        on_cpu, process = False, CONTEXT
    variant = variant_of(config, shape, work, dtype, on_cpu, process)
    seconds = floors(shape, work, machine, variant.footprint, reference=variant.reference)
    memory = variant.memory()
    plan = Forecast(title, shape, work, variant.footprint, memory, room, seconds, False, machine, (), tuple(notes))
    return _of_all_processes(plan, config, variant)


def _of_all_processes(plan: Forecast, config: RunConfig, variant: Variant) -> Forecast:
    """`plan`, which is of one process, with those of `[cluster]` on this machine, and suggestions if it is too large.

    The others' memory is by formula; on a GPU it is not counted.
    """
    factor, peak_of = plan.memory.peak / variant.memory().peak, _peak_of(config) if variant.on_cpu else None
    if not config.cluster.alone:
        times = "times are" if peak_of is not None and config.cluster.on_this_machine else "memory and times are"
        note = f"{times} those of one process: `oncurve plan --machines` counts the others of [cluster]"
        plan = replace(plan, notes=(*plan.notes, note))
    if peak_of is not None and not config.cluster.alone:
        plan = replace(plan, processes=processes_here(config), together=peak_of(variant) * factor)
    if plan.fits:
        return plan
    found = suggestions(variant, plan.budget.available, factor, peak_of or (lambda changed: changed.memory().peak))
    return replace(plan, suggestions=tuple(found))


def _peak_of(config: RunConfig) -> Callable[[Variant], float]:
    """The bytes that the processes of `config` on this machine need, which has a CPU, with other settings too."""
    return lambda variant: on_one_host(variant, layout_of(config), not config.cluster.on_this_machine)


def processes_here(config: RunConfig) -> int:
    """The run's own process, and those of `[cluster]` on this machine as far as that is known."""
    cluster = config.cluster
    return cluster.processes + cluster.workers if cluster.on_this_machine else 1


def device_of(config: RunConfig) -> torch.device:
    """Where the run computes."""
    return torch.device("cuda" if torch.cuda.is_available() and config.model.device != "cpu" else "cpu")


def _room(device: torch.device) -> AvailableMemory:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        return AvailableMemory(free, total, "the GPU's free memory")
    return memory_here()


def check_memory(config: RunConfig) -> list[str]:
    """Whether a run on the CPU has the memory it needs, by formula, at once: a line of warning where it is tight.

    On a CPU the kernel kills a process without a message. A model whose configuration cannot be read is left to
    loading, which reports it.
    Raises ConfigError where the run needs clearly more than there is, with settings that make it smaller.
    """
    if not config.learner.built_in:
        return [f"the memory of the run is not checked: the needs of {type(config.learner).__name__} are not known"]
    folder = Path(config.model.path).expanduser()
    try:
        if device_of(config).type != "cpu" or not folder.is_dir():
            return []
        shape = shape_of(read_model_config(config.model.source(weights=False), config.model.trust_remote_code))
    except UserError:
        return []
    shape = with_adapter(shape, config.lora)
    work = _work(config, (config.data.max_prompt_tokens or ASSUMED_PROMPT,) * config.data.prompts_per_step)
    process = float(MemoryMeter(torch.device("cpu")).now()) + UNIMPORTED
    variant = variant_of(config, shape, work, config.model.precision()[0], True, process)
    peak_of, room = _peak_of(config), memory_here()
    peak = peak_of(variant)
    if peak <= room.available:
        return []
    count = processes_here(config)
    ranks = "" if count == 1 else f" of {count} processes"
    says = (
        f"the run{ranks} needs about {peak / 1e9:,.1f} GB, and there are {room.available / 1e9:,.1f} GB "
        f"({room.limit}); `oncurve plan` has the details"
    )
    if peak <= REFUSED * room.available:
        return [f"warning: {says}; it may be killed without a word"]
    found = suggestions(variant, room.available, peak_of=peak_of)
    smaller = [f"  {suggestion.settings}  about {suggestion.peak / 1e9:,.1f} GB" for suggestion in found]
    raise ConfigError("\n".join([f"memory: {says}", *(["what makes it smaller:", *smaller] if smaller else [])]))


def layout_of(config: RunConfig) -> Layout:
    """The processes that a run's `[cluster]` says."""
    cluster = config.cluster
    return Layout(cluster.processes, cluster.workers, "fsdp" if cluster.divided else "replicate", cluster.lag)
