"""`oncurve plan`: what a run will hold and how long its steps will take, before anything is loaded.

Only the model's configuration is read, and of the data as many prompts as say how long they are. The seconds on this
machine come from a rehearsal with arbitrary weights; those on a machine that is named come from formulas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ConfigError, ModelError, UserError, shown, suggest
from oncurve.base.paths import usable_path
from oncurve.config import RunConfig
from oncurve.forecast.memory import Variant, on_one_host, shard_peak
from oncurve.forecast.outlook import Forecast, suggestions
from oncurve.forecast.rehearsal import MemoryMeter, Parts, measure_machine, tidy
from oncurve.forecast.scaling import floors, rehearse_and_scale
from oncurve.forecast.shapes import (
    MODELS,
    AvailableMemory,
    Machine,
    ModelShape,
    StepWork,
    machine,
    memory_here,
    parse_quantity,
    shape_of,
    shape_of_size,
)
from oncurve.forecast.unloaded import (
    ASSUMED_PROMPT,
    count_parameters,
    demonstration_lengths,
    prompt_lengths,
    read_model_config,
    reward_model_bytes,
    room_for_prompts,
    teacher_bytes,
    with_adapter,
)
from oncurve.learner import gives_values
from oncurve.machine.threads import prepare_process
from oncurve.models import LoraSettings
from oncurve.models.loading import DTYPES, said_by
from oncurve.report import rendered

UNIMPORTED = 150e6
"""What a process still takes for libraries and their first use after the commands have been imported."""

CONTEXT = 600e6
"""What CUDA and its libraries take of a card before the first tensor."""

SAMPLING = ("prefill", "decode", "decode_step")
"""The phases of a rollout."""

REFUSED = 1.15
"""A run is refused where the formulas say so many times what is there: they are that far off at most, mostly above."""


def forecast_command(
    config: RunConfig,
    base: Path,
    name: str,
    model: str | None,
    parameters: str | None,
    prompt_tokens: int | None,
    card: tuple[str | None, str | None],
    words: Sequence[str],
    say: Callable[[str], None],
) -> Forecast:
    """Return the forecast that the command's words mean.

    name   what the configuration was made of
    card   a machine's name and memory; None each: this machine
    words  the settings of the command line
    say    is called with progress messages

    Raises UserError: no model, or one that cannot be read; data that cannot be read, where no lengths of prompts are
    given; sizes that cannot be.
    """
    if prompt_tokens is not None and not 1 <= prompt_tokens <= 10**7:
        raise ConfigError(f"--prompt-tokens {prompt_tokens}: must be 1 at least, and 10,000,000 at most")
    asked = _asked_shape(model, parameters)
    if card[0] is None and card[1] is not None:
        raise ConfigError("--memory is that of a card: name it, or one like it, with --machine")
    place = machine(card[0], card[1]) if card[0] is not None else None
    subject = model or (f"{parameters} parameters" if parameters is not None else config.model.path)
    title = (name if name == subject else f"{name}: {subject}") + (f" on {place.name}" if place is not None else "")
    if asked is None and not config.model.path:
        raise ConfigError(
            "no model: name a recipe that has one, set model.path=FOLDER, or give --model qwen2.5-7b or --parameters 7B"
        )
    trusted = config.model.trust_remote_code
    stored = read_model_config(config.model.source(weights=False), trusted) if asked is None else None
    shape = with_adapter(asked or shape_of(stored, count_parameters(stored)), config.lora, stored)
    shown, row = None, None if shape.positions is None else shape.positions + 1  # its last token is never fed
    if config.demonstrates:
        *shown, longest = demonstration_lengths(config, base, row)
        config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_new_tokens": longest})})
    if shown is None:
        room = room_for_prompts(row, config)
        lengths, notes = prompt_lengths(config, base, prompt_tokens, asked is None, room)
    else:
        lengths, notes = shown[0], ["a warm start samples in evaluations alone, which are not in the time of a step"]
    notes += _not_counted(config)
    keeps_kl = any(word.startswith(("kl.", "reference.")) and not word.startswith("kl.coef") for word in words)
    work = _work(config, lengths, config.model.torch_device.type if place is None else "cuda")
    if place is not None:
        plan = _on_card(config, shape, work, place, title)
    else:
        plan = _on_this_machine(config, stored, shape, work, title, say)
    if shown is not None:
        seconds = {name: value for name, value in plan.seconds.items() if name not in SAMPLING}
        plan = replace(plan, seconds={**seconds, "step": sum(seconds.values()) - seconds["step"]})
    variant = replace(plan.variant, keeps_kl=plan.variant.keeps_kl or keeps_kl)
    return _of_all_processes(replace(plan, variant=variant, notes=[*notes, *plan.notes]), config)


def _asked_shape(model: str | None, parameters: str | None) -> ModelShape | None:
    """Return the shape that `--model` (a name, or a model's folder or hub id) or `--parameters` mean.

    Raises ConfigError: both, an unknown name, an impossible number.
    """
    if model is not None and parameters is not None:
        raise ConfigError("--model and --parameters both say what the model is; give one of them")
    if parameters is not None:
        return shape_of_size(parse_quantity(parameters, "--parameters", "7B, 494M or 7e9"))
    if model is None:
        return None
    if model.lower() in MODELS:
        return MODELS[model.lower()]
    if not (usable_path(model, "--model").exists() or "/" in model):
        raise ConfigError(
            f"--model {shown(model)}: unknown{suggest(model, MODELS) or '; there are: ' + ', '.join(MODELS)}"
        )
    found = read_model_config(model)
    return shape_of(found, count_parameters(found))


def _work(config: RunConfig, lengths: tuple[int, ...], device_type: str) -> StepWork:
    from oncurve.batching import ENOUGH, FILLED  # which loads torch

    tokens = config.learner.tokens_per_micro_batch
    if device_type == "cpu" and not config.cluster.facts.divided:
        tokens = min(tokens, max(ENOUGH, int(FILLED * sum(lengths) / len(lengths))))
    return StepWork(
        config.data.prompts_per_step,
        config.rollout.group_size,
        config.rollout.max_new_tokens,
        lengths,
        config.rollout.rows_at_once(device_type),
        tokens,
        config.learner.minibatches,
        config.learner.ppo_epochs,
        config.filter.top_entropy < 1 or (not config.stays_at_1 and config.old_logprobs == "recompute"),
        min(config.environment.max_turns, config.rollout.max_new_tokens),
    )


def _variant(
    config: RunConfig, shape: ModelShape, work: StepWork, dtype: str, process: float, gpu: AvailableMemory | None = None
) -> Variant:
    """Return what of a run's settings determines its peak.

    process  bytes before the model is loaded
    gpu      the memory of the card; None: the run is on a CPU
    """
    return Variant(
        shape,
        work,
        dtype,
        config.learner.moments,
        config.learner.masters,
        reference=bool(config.kl.coef),
        checkpointing=config.learner.gradient_checkpointing,
        on_cpu=gpu is None,
        process=process,
        critic=gives_values(config.critic),
        averaged=config.reference.every > 0 and config.reference.mixup_alpha < 1,
        held=not config.lora.adapted or config.lora.path is not None or config.following.every > 0,
        reward_models=reward_model_bytes(config),
        teacher=teacher_bytes(config, dtype),
        keeps_kl=config.reference.every > 0,
        quantized=config.model.quantization is not None,
        whole_weights=config.cluster.facts.divided or config.cluster.facts.served,
        room=math.inf if gpu is None else gpu.available,
    )


def _on_card(config: RunConfig, shape: ModelShape, work: StepWork, card: Machine, title: str) -> Forecast:
    """Return the forecast on a machine that is named, by formula."""
    dtype = card.dtype if config.model.dtype == "auto" else config.model.dtype
    room = AvailableMemory(card.memory, f"memory of {card.name}")
    variant = _variant(config, shape, work, dtype, CONTEXT, room)
    return Forecast(title, variant, variant.memory(), room, floors(variant, card), False, card)


def _on_this_machine(
    config: RunConfig, model: Any, shape: ModelShape, work: StepWork, title: str, say: Callable[[str], None]
) -> Forecast:
    """Return the forecast on this machine: rehearsed, or by formula where there is no configuration of a `model`."""
    prepare_process(config.run.threads)
    device, (dtype, _) = config.model.torch_device, config.model.precision()
    meter, on_cpu = MemoryMeter(device), device.type == "cpu"
    before = float(meter.now())
    say(f"measuring this machine (threads: {torch.get_num_threads()}, {dtype})")
    room = _room(device)
    here = measure_machine(shape, DTYPES[dtype], device, room.available)
    variant = _variant(config, shape, work, dtype, *((before + UNIMPORTED, None) if on_cpu else (CONTEXT, room)))
    if model is None:
        return Forecast(title, variant, variant.memory(), _room(device), floors(variant, here), False, here)
    lora = config.lora
    if lora.path is not None:  # a stored adapter has other layers than a small model: one of the same size
        lora = LoraSettings(rank=max(1, round(shape.adapter / shape.low_rank(1))))
    try:
        found = rehearse_and_scale(Parts(config, model, lora, DTYPES[dtype], device), variant, here, say)
    except (UserError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        raise ModelError(
            f"{config.model.path}: a small model of this configuration does not run here, so a step of it cannot be "
            f"timed; check its config.json, or plan it on a card: --machine h100{said_by(error)}"
        ) from error
    tidy()
    variant = replace(variant, process=max(before, float(meter.now()))) if on_cpu else variant
    memory = variant.memory(found.activations, found.training)
    least = floors(variant, here)  # what noise hides takes its limit
    seconds = {name: max(value, least[name]) for name, value in found.seconds.items()}
    seconds["step"] = sum(value for name, value in seconds.items() if name != "decode_step")
    notes = [found.path_reason]
    if not found.whole:
        notes.append("the model is too large to be rehearsed whole: a layer and the head were, and were scaled")
    return Forecast(title, variant, memory, _room(device), seconds, True, here, (), notes)


def _not_counted(config: RunConfig) -> list[str]:
    """Return notes on what neither the seconds nor the bytes have in them."""
    critic, teacher = gives_values(config.critic), teacher_bytes(config, "bfloat16") > 0
    named = {"critic": critic, "teacher": teacher, "learner": type(config.learner).__name__}
    return rendered("forecast_notes.j2", c=config, **named).splitlines()


def _of_all_processes(plan: Forecast, config: RunConfig) -> Forecast:
    """Return `plan`, which is of one process, with those of `[cluster]` on this machine, and suggestions if it is too
    large.

    The others' memory is by formula; on a GPU it is not counted.
    """
    variant, here = plan.variant, plan.variant.on_cpu
    factor = plan.memory.peak / variant.memory().peak
    if not config.cluster.facts.alone:
        counted = "times are" if here and config.cluster.facts.on_this_machine else "memory and times are"
        plan = replace(plan, notes=(*plan.notes, f"{counted} those of one process"))
        if here:
            together = _peak_of(config)(variant) * factor
            plan = replace(plan, processes=_processes_here(config), together=together)
    if plan.fits:
        return plan
    peak_of = _peak_of(config) if here else _peak_alone
    return replace(plan, suggestions=suggestions(variant, plan.budget.available, factor, peak_of))


def _peak_of(config: RunConfig) -> Callable[[Variant], float]:
    """Return the bytes that the processes of `config` need on this machine, which has a CPU, by variant."""
    return lambda variant: on_one_host(variant, config.cluster.facts)


def _peak_alone(variant: Variant) -> float:
    return variant.memory().peak


def _processes_here(config: RunConfig) -> int:
    """Return the number of the run's own process and of those of `[cluster]` on this machine, as far as it is known."""
    cluster = config.cluster.facts
    return cluster.processes + cluster.workers if cluster.on_this_machine else 1


def _room(device: torch.device) -> AvailableMemory:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return AvailableMemory(free, "the GPU's free memory")
    return memory_here()


def _stored(config: RunConfig) -> tuple[ModelShape, StepWork]:
    """Return the shape of the stored model, and a step of the longest prompts. Raises UserError: it cannot be read."""
    shape = shape_of(read_model_config(config.model.source(weights=False), config.model.trust_remote_code))
    lengths = (config.data.max_prompt_tokens or ASSUMED_PROMPT,) * config.data.prompts_per_step
    return with_adapter(shape, config.lora), _work(config, lengths, config.model.torch_device.type)


def training_bytes(config: RunConfig) -> float:
    """Return the bytes of a GPU that rank 0 takes by formula while others sample; infinity if they are not known."""
    try:
        shape, work = _stored(config)
    except UserError:
        return math.inf
    cluster, nothing_kept = config.cluster.facts, AvailableMemory(0.0, "")
    variant = _variant(config, shape, work, config.model.precision()[0], CONTEXT, nothing_kept)
    known = shard_peak(variant, cluster) if cluster.divided else variant.memory().phases["training"]
    return known if config.learner.built_in else math.inf


def check_memory(config: RunConfig) -> list[str]:
    """Check by formula, at once, that a run has the memory it needs; return a line of warning where it is tight.

    On a CPU the kernel kills a process without a message. A GPU that runs out of memory goes on with smaller
    micro-batches and fewer rows, so it needs room for one row at a time. Several processes on GPUs are not checked, and
    a model whose configuration cannot be read is left to loading, which reports it.
    Raises ConfigError where the run needs clearly more than there is, with settings that make it smaller.
    """
    if not config.learner.built_in:
        return [f"the memory of the run is not checked: the needs of {type(config.learner).__name__} are not known"]
    folder = Path(config.model.path).expanduser()
    try:
        device = config.model.torch_device
        on_cpu = device.type == "cpu"
        if not folder.is_dir() or not (on_cpu or (device.type == "cuda" and config.cluster.facts.alone)):
            return []
        shape, work = _stored(config)
    except UserError:
        return []
    room, dtype, peak_of = _room(device), config.model.precision()[0], _peak_of(config)
    if on_cpu:
        variant = _variant(config, shape, work, dtype, float(MemoryMeter(device).now()) + UNIMPORTED)
    else:  # the context is there already
        variant, peak_of = _variant(config, shape, work, dtype, 0.0, room), _peak_alone
    peak = peak_of(variant)
    if peak <= room.available:
        return []
    smallest = variant if on_cpu else replace(variant, work=replace(work, micro_tokens=1, rows=1))
    least = peak_of(smallest)
    refused = least > REFUSED * room.available
    found = suggestions(smallest, room.available, peak_of=peak_of) if refused else []
    about = {"needed": least if refused else peak, "room": room, "found": found, "count": _processes_here(config)}
    text = rendered("memory.j2", refused=refused, on_cpu=on_cpu, **about)
    if refused:
        raise ConfigError(text)
    return [text]
