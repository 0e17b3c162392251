"""`oncurve plan --machines 8xh200`: memory per GPU, the split into ranks and workers, and the step by lag.

Nothing is loaded: a model's configuration is read, the rest is by formula and by simulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.cluster import CLUSTER_KINDS
from oncurve.components import build
from oncurve.config import RunConfig, check_config
from oncurve.forecast.cluster import (
    LAGS,
    MEAN_LENGTH,
    Layout,
    best_layout,
    fits,
    layouts,
    on_one_host,
    rank_memory,
    worker_memory,
)
from oncurve.forecast.command import CONTEXT, UNIMPORTED, asked_shape, layout_of, studied, variant_of
from oncurve.forecast.machines import ALIASES, MACHINES, Machine, memory_here
from oncurve.forecast.memory import Memory
from oncurve.forecast.meter import MemoryMeter, measure_machine
from oncurve.forecast.outlook import PART_NAMES, Suggestion, Variant, duration, size, suggestions
from oncurve.forecast.request import ForecastRequest, Sizes
from oncurve.forecast.simulation import Outcome

HERE = "cpu"
MOST_MACHINES = 4096
NO_MORE = "take more memory, or a smaller model."
PARTS = PART_NAMES | {
    "gathered": "gathered layers",
    "copy": "bf16 copy to sample from",
    "versions": "versions that wait (lag)",
}

_MACHINES = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?([a-z][a-z0-9-]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Machines:
    """`nodes` machines with `each` GPUs of a kind; `machine` is None for processes of this machine."""

    nodes: int
    each: int
    machine: Machine | None

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.each

    @property
    def kind(self) -> str:
        """The kind of `[cluster]`: processes of one machine, or of several."""
        return "ray" if self.nodes > 1 else "host"

    @property
    def name(self) -> str:
        """`2x8xh200`."""
        nodes = f"{self.nodes}x" if self.nodes > 1 else ""
        return f"{nodes}{self.each}x{HERE if self.machine is None else self.machine.name}"


def parse_machines(text: str) -> Machines:
    """`h200`, `8xh200` (GPUs), `2x8xh200` (nodes, GPUs of each), `4xcpu` (processes of this machine).

    Raises ConfigError for anything else, with the known names.
    """
    found = _MACHINES.fullmatch(text.strip())
    known = [*MACHINES, *ALIASES, HERE]
    listed = ", ".join(known)
    if found is None:
        raise ConfigError(
            f"--machines {shown(text)}: expected GPUs and their name, like 8xh200, or nodes too, like 2x8xh200; there "
            f"are: {listed}"
        )
    name = ALIASES.get(found[3].lower(), found[3].lower())
    first, second = int(found[1] or 1), int(found[2] or 0)
    nodes, each = (first, second) if found[2] else (1, first)
    if name not in MACHINES and name != HERE:
        raise ConfigError(
            f"--machines {shown(text)}: unknown {shown(found[3])}{suggest(name, known) or '; there are: ' + listed}"
        )
    if not 1 <= nodes * each <= MOST_MACHINES or (name == HERE and nodes > 1):
        here = f"1 node of {HERE}, which is this machine" if name == HERE and nodes > 1 else ""
        raise ConfigError(f"--machines {shown(text)}: there can be {here or f'1 to {MOST_MACHINES} GPUs'}")
    return Machines(nodes, each, MACHINES.get(name))


@dataclass(frozen=True)
class ClusterPlan:
    """The result. `memory` by role; `room` bytes per GPU (of the machine, on a CPU); `outcomes` by lag; `groups` that a
    worker decodes together; `enough`: what to do where no setting makes the run fit."""

    title: str
    machines: Machines
    layout: Layout
    memory: Mapping[str, Memory]
    together: float
    room: float
    outcomes: Mapping[int, Outcome]
    groups: int
    notes: Sequence[str] = ()
    suggestions: Sequence[Suggestion] = ()
    enough: str = ""

    @property
    def peak(self) -> float:
        """Of the fullest GPU; on a CPU of all processes together."""
        return self.together or max(memory.peak for memory in self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether there is room for the peak."""
        return self.peak <= self.room

    @property
    def settings(self) -> str:
        """The settings of the split; one process needs none."""
        if self.machines.gpus == 1:
            return "cluster.kind=none"
        together = {"shard_groups": self.groups} if self.layout.workers else {}
        tables = {"kind": self.machines.kind, **self.layout.tables, **together}
        return " ".join(f"cluster.{key}={value}" for key, value in tables.items())

    def to_json(self) -> dict[str, object]:
        """All numbers, in bytes and seconds."""
        layout = self.layout
        return {
            "title": self.title,
            "machines": self.machines.name,
            "gpus": self.machines.gpus,
            "memory": {
                role: {part: round(value) for part, value in memory.parts.items()} | {"peak": round(memory.peak)}
                for role, memory in self.memory.items()
            },
            "peak_bytes": round(self.peak),
            "available_bytes": round(self.room),
            "fits": self.fits,
            "learner_ranks": layout.ranks,
            "rollout_workers": layout.workers,
            "sharding": layout.sharding,
            "lag": layout.lag,
            "settings": self.settings,
            "steps": {
                str(lag): {
                    "seconds": found.step_seconds,
                    "ranks_busy": found.trainer_busy,
                    "workers_busy": found.rollout_busy,
                }
                for lag, found in self.outcomes.items()
            },
            "suggestions": [{"settings": each.settings, "peak_bytes": round(each.peak)} for each in self.suggestions],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """All of it as text."""
        lines = [self.title, "", *self._memory_lines(), "", *self._split_lines()]
        if self.notes:
            lines += ["", *(f"note: {note}" for note in self.notes)]
        return "\n".join([*lines, "", *self._verdict()])

    def _memory_lines(self) -> list[str]:
        where = "process" if self.machines.machine is None else "GPU"
        roles = list(self.memory)
        lines = [f"{f'Memory per {where}':<28}" + "".join(f" {role:>12}" for role in roles)]
        for part, name in PARTS.items():
            values = [memory.parts.get(part, 0.0) for memory in self.memory.values()]
            if any(values):
                lines.append(f"  {name:<26}" + "".join(f" {size(value) if value else '-':>12}" for value in values))
        peaks = "".join(f" {size(memory.peak):>12}" for memory in self.memory.values())
        lines.append(f"  {'predicted peak':<26}{peaks}")
        if self.together:
            lines.append(f"  {'all processes':<26} {size(self.together):>12}")
        return lines

    def _split_lines(self) -> list[str]:
        layout = self.layout
        kind = "process" if self.machines.machine is None else "GPU"
        samples = f"{layout.workers} to sample" if layout.workers else "which samples too"
        plural = ("es" if kind == "process" else "s") if layout.ranks > 1 else ""
        lines = [f"Split: {layout.ranks} {kind}{plural} to train, {samples}", f"  {self.settings}"]
        if not self.fits:
            return lines
        lines.append(f"{'Step, simulated':<17}{'seconds':>10}{'ranks busy':>14}{'workers busy':>14}")
        for lag, found in self.outcomes.items():
            mark = "   worth it" if lag == layout.lag and lag else ""
            name = f"  lag {lag}"
            step = duration(found.step_seconds)
            lines.append(f"{name:<17}{step:>10}{found.trainer_busy:>14.0%}{found.rollout_busy:>14.0%}{mark}")
        if layout.workers and len(self.outcomes) < len(LAGS):
            lines.append(f"  lag {len(self.outcomes)}: no room for the versions that wait")
        if len(self.outcomes) > 1 and not layout.lag:
            lines.append("  no lag is worth it")
        return lines

    def _verdict(self) -> list[str]:
        here = self.machines.machine is None
        if self.fits:
            return [f"It fits: {size(self.peak)} of the {size(self.room)} {'that are free' if here else 'of a GPU'}."]
        has = f"{size(self.room)} are free" if here else f"a GPU has {size(self.room)}"
        lines = [f"It does not fit: it takes {size(self.peak)}, and {has}."]
        if not self.suggestions:
            return [*lines, self.enough]
        return [
            *lines,
            "What makes it fit, each in the split that is best for it (plan with it to see which):",
            *(f"  {each.settings:<76} {size(each.peak):>10}" for each in self.suggestions),
        ]


def plan_machines(
    config: RunConfig,
    base: Path,
    name: str,
    model: str | None,
    parameters: str | None,
    sizes: Sizes,
    machines: str,
) -> ClusterPlan:
    """The plan of a run on `machines`. Raises UserError, see `studied` and `parse_machines`."""
    where = parse_machines(machines)
    given, _, shape, work, notes = studied(config, base, ForecastRequest(sizes, asked_shape(model, parameters)))
    subject = model or (f"{parameters} parameters" if parameters is not None else config.model.path)
    kind = config.model.precision()[0] if where.machine is None else where.machine.dtype
    dtype = kind if config.model.dtype == "auto" else config.model.dtype
    on_cpu = where.machine is None
    process = float(MemoryMeter(torch.device("cpu")).now()) + UNIMPORTED if on_cpu else CONTEXT
    variant = variant_of(given, shape, work, dtype, on_cpu, process)
    room = memory_here().available if on_cpu else float(where.machine.memory if where.machine else 0.0)
    shardings = _shardings(given, where)
    choice = [replace(layout, windowed=given.cluster.windowed) for layout in _chosen(variant, where, room, shardings)]

    def holds(layout: Layout) -> bool:
        return peak_of(variant, layout, where) <= room

    layout, outcomes = best_layout(variant, choice, where.machine or _this_machine(variant, where.each), holds)
    memory = {"rank 0": rank_memory(variant, layout)}
    if layout.ranks > 1:
        memory["other ranks"] = rank_memory(variant, layout, first=False)
    if layout.workers:
        memory["worker"] = worker_memory(variant, layout.workers)
    together = on_one_host(variant, layout) if on_cpu else 0.0
    notes = [*notes, *_notes(given, layout, where)]
    groups = -(-work.prompts // max(1, layout.workers))
    title = f"{name}: {subject} on {where.name}"
    plan = ClusterPlan(title, where, layout, memory, together, room, outcomes, groups, tuple(notes))
    return plan if plan.fits else _unfitting(given, variant, plan, shardings)


def _unfitting(config: RunConfig, variant: Variant, plan: ClusterPlan, shardings: Sequence[str]) -> ClusterPlan:
    """The plan of a run that does not fit, with what helps."""
    where = plan.machines
    alone = where.gpus == 1 and _refused(config, where, "replicate") is not None
    refused = _refused(config, where, "fsdp") if "fsdp" not in shardings and where.gpus > 1 else None
    notes = [*plan.notes, *([f"the ranks cannot divide the model: {refused}"] if refused is not None else [])]
    found = _fitting(variant, where, plan.room, shardings)
    if found:
        return replace(plan, notes=notes, suggestions=found)
    more = "" if alone or where.machine is None else _enough(variant, where, plan.room, shardings)
    return replace(plan, notes=notes, enough=more or f"No setting makes it small enough: {NO_MORE}")


def _notes(config: RunConfig, layout: Layout, where: Machines) -> list[str]:
    """What the plan takes for granted."""
    notes = [
        f"completions are taken to have {MEAN_LENGTH:.0%} of rollout.max_new_tokens on average, spread as in "
        "docs/scaling.md; seconds are by formula and simulation, without the rewards"
    ]
    if layout.sharding != layout_of(config).sharding:
        notes.append("whole copies of the model do not fit, so the ranks divide it (cluster.sharding=fsdp)")
    if not config.cluster.exact:
        notes.append("a vLLM server takes the memory that it is started with, whatever a worker is said to take")
    if where.machine is None:
        notes.append("`oncurve plan` without --machines times a step on this machine; these seconds are rougher")
    return notes


def _shardings(config: RunConfig, where: Machines) -> list[str]:
    """What `cluster.sharding` may be for this run, the run's own first. Raises ConfigError: several processes are
    refused."""
    asked = layout_of(config)
    refused = _refused(config, where, asked.sharding) if where.gpus > 1 else None
    if refused is not None:
        raise ConfigError(f"--machines {where.name}: {refused}")
    other = where.machine is not None and asked.sharding == "replicate" and not _refused(config, where, "fsdp")
    return [asked.sharding, *(["fsdp"] if other else [])]


def _refused(config: RunConfig, where: Machines, sharding: str) -> str | None:
    """Why the run's settings allow no ranks with this sharding."""
    keys = Layout(2, 1, sharding).tables
    try:
        cluster = build({"kind": where.kind, **keys}, CLUSTER_KINDS, "cluster")
        check_config(config.model_copy(update={"cluster": cluster}))
    except ConfigError as error:
        return str(error)
    return None


def _this_machine(variant: Variant, processes: int) -> Machine:
    """A process's part of what this machine reaches."""
    dtype = torch.float32 if variant.dtype == "float32" else torch.bfloat16
    whole = measure_machine(variant.shape, dtype, torch.device("cpu"), memory_here().total)
    return replace(whole, flops=whole.flops / processes, bandwidth=whole.bandwidth / processes)


def peak_of(variant: Variant, layout: Layout, where: Machines) -> float:
    """What has to have room: the fullest GPU, or all processes of this machine."""
    if where.machine is None:
        return on_one_host(variant, layout)
    worker = worker_memory(variant, layout.workers).peak if layout.workers else 0.0
    return max(rank_memory(variant, layout).peak, worker)


def _ways(variant: Variant, gpus: int, shardings: Sequence[str]) -> list[Layout]:
    """The splits that a run may have: split masters and quantised weights are not divided among ranks."""
    whole = variant.masters == "split" or variant.quantized
    usable = [each for each in shardings if each == "replicate" or not whole] or ["replicate"]
    return [layout for sharding in usable for layout in layouts(gpus, sharding)]


def _chosen(variant: Variant, where: Machines, room: float, shardings: Sequence[str]) -> list[Layout]:
    """The splits that fit, of the first sharding that has one; where none does, the one with the smallest peak."""
    every = _ways(variant, where.gpus, shardings)
    for sharding in shardings:
        good = [each for each in every if each.sharding == sharding and peak_of(variant, each, where) <= room]
        if good:
            return good
    return [min(every, key=lambda layout: peak_of(variant, layout, where))]


def _fitting(variant: Variant, where: Machines, room: float, shardings: Sequence[str]) -> list[Suggestion]:
    """Return the settings that make the run fit, alone or together, each checked by the formula in its best split."""

    def least(changed: Variant) -> float:
        return min(peak_of(changed, layout, where) for layout in _ways(changed, where.gpus, shardings))

    return [each for each in suggestions(variant, room, peak_of=least) if each.peak <= room]


def _enough(variant: Variant, where: Machines, room: float, shardings: Sequence[str]) -> str:
    """How many GPUs are enough where no setting is, or why no number of them is."""
    for gpus in (1 << power for power in range(1, 11)):
        if gpus > where.gpus and any(fits(variant, each, room) for each in _ways(variant, gpus, shardings)):
            return f"No setting makes it small enough; {gpus} of these GPUs are enough."
    most = _ways(variant, 1 << 11, shardings)[-1]
    peaks = {"rank 0": rank_memory(variant, most).peak, "a worker": worker_memory(variant, most.workers).peak}
    role = max(peaks, key=lambda each: peaks[each])
    return f"No number of these GPUs is enough: {role} takes {size(peaks[role])} however many there are; {NO_MORE}"
