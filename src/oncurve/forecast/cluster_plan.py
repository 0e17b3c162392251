"""`oncurve plan --machines 8xh200`: memory per GPU, the split into ranks and workers, and the step by lag.

Nothing is loaded: a model's configuration is read, the rest is by formula and by simulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from oncurve.config import RunConfig
from oncurve.errors import ConfigError, shown, suggest
from oncurve.forecast.cluster import (
    MEAN_LENGTH,
    USUAL_SHARDS,
    Layout,
    best_layout,
    fits,
    layouts,
    on_one_host,
    rank_memory,
    worker_memory,
)
from oncurve.forecast.command import CONTEXT, UNIMPORTED, asked_shape, layout_of, studied, variant_of
from oncurve.forecast.machines import MACHINES, Machine, memory_here
from oncurve.forecast.memory import Memory
from oncurve.forecast.meter import MemoryMeter, measure_machine
from oncurve.forecast.outlook import PART_NAMES, Suggestion, Variant, changes, duration, size
from oncurve.forecast.request import ForecastRequest, Sizes
from oncurve.forecast.simulation import Outcome

ALIASES = {"a100": "a100-80"}
HERE = "cpu"
MOST_MACHINES = 4096
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
    if found is None:
        raise ConfigError(
            f"--machines {shown(text)}: expected GPUs and their name, like 8xh200, or nodes too, like 2x8xh200; there "
            f"are: {', '.join(known)}"
        )
    name = ALIASES.get(found[3].lower(), found[3].lower())
    first, second = int(found[1] or 1), int(found[2] or 0)
    nodes, each = (first, second) if found[2] else (1, first)
    if name not in MACHINES and name != HERE:
        raise ConfigError(
            f"--machines {shown(text)}: unknown {shown(found[3])}{suggest(name, known) or ''}; there are: "
            f"{', '.join(known)}"
        )
    if not 1 <= nodes * each <= MOST_MACHINES or (name == HERE and nodes > 1):
        most = "1 node" if name == HERE and nodes > 1 else f"1 to {MOST_MACHINES} GPUs"
        raise ConfigError(f"--machines {shown(text)}: there can be {most}")
    return Machines(nodes, each, MACHINES.get(name))


@dataclass(frozen=True)
class ClusterPlan:
    """The result. `memory` by role; `room` bytes per GPU (of the machine, on a CPU); `outcomes` by lag."""

    title: str
    machines: Machines
    layout: Layout
    memory: Mapping[str, Memory]
    together: float
    room: float
    outcomes: Mapping[int, Outcome]
    suggestions: Sequence[Suggestion] = ()
    notes: Sequence[str] = ()

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
        return f"cluster.kind={'ray' if self.machines.nodes > 1 else 'host'} {self.layout.settings}"

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
        lines.append(f"{'Step, simulated':<17}{'seconds':>10}{'ranks busy':>14}{'workers busy':>14}")
        for lag, found in self.outcomes.items():
            mark = "   worth it" if lag == layout.lag and lag else ""
            name = f"  lag {lag}"
            step = duration(found.step_seconds)
            lines.append(f"{name:<17}{step:>10}{found.trainer_busy:>14.0%}{found.rollout_busy:>14.0%}{mark}")
        if len(self.outcomes) > 1 and not layout.lag:
            lines.append("  no lag is worth it")
        return lines

    def _verdict(self) -> list[str]:
        where = "this machine" if self.machines.machine is None else "a GPU"
        budget = f"{size(self.room)} of {where}"
        if self.fits:
            return [f"It fits: {size(self.peak)} of {budget}."]
        lines = [f"It does not fit: {size(self.peak)} of {budget}."]
        if not self.suggestions:
            return [*lines, "No setting makes it small enough: take more GPUs, or a smaller model."]
        return [
            *lines,
            "What makes it fit:",
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
    kind = config.model.precision()[0] if where.machine is None else "bfloat16"
    dtype = kind if config.model.dtype == "auto" else config.model.dtype
    on_cpu = where.machine is None
    process = float(MemoryMeter(torch.device("cpu")).now()) + UNIMPORTED if on_cpu else CONTEXT
    variant = variant_of(given, shape, work, dtype, on_cpu, process)
    room = memory_here().available if on_cpu else float(where.machine.memory if where.machine else 0.0)
    machine = where.machine or _this_machine(variant, where.each)
    choice = _chosen(variant, where, room, layout_of(given).sharding)
    layout, outcomes = best_layout(variant, choice, machine)
    memory = {"rank 0": rank_memory(variant, layout)}
    if layout.ranks > 1:
        memory["other ranks"] = rank_memory(variant, layout, first=False)
    if layout.workers:
        memory["worker"] = worker_memory(variant, layout.workers)
    together = on_one_host(variant, layout) if on_cpu else 0.0
    says = (
        f"completions are taken to have {MEAN_LENGTH:.0%} of rollout.max_new_tokens on average, spread as in "
        "docs/scaling.md; seconds are by formula and simulation, without the rewards"
    )
    notes = [*notes, says]
    if on_cpu:
        notes.append("`oncurve plan` without --machines times a step on this machine; these seconds are rougher")
    plan = ClusterPlan(
        f"{name}: {subject} on {where.name}", where, layout, memory, together, room, outcomes, (), tuple(notes)
    )
    return plan if plan.fits else replace(plan, suggestions=_fitting(variant, layout, where, room))


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


def _chosen(variant: Variant, where: Machines, room: float, sharding: str) -> list[Layout]:
    """The splits that fit; where none does, the one with the smallest peak."""
    every = layouts(where.gpus, sharding)
    if where.machine is None:
        good = [layout for layout in every if on_one_host(variant, layout) <= room]
    else:
        good = [layout for layout in every if fits(variant, layout, room)]
    return good or [min(every, key=lambda layout: peak_of(variant, layout, where))]


def _fitting(variant: Variant, layout: Layout, where: Machines, room: float) -> list[Suggestion]:
    """Settings that make the run fit, each checked by the formula: alone where one is enough, else together."""
    tried: list[tuple[str, Variant, Layout]] = []
    if layout.sharding == "replicate" and where.gpus > 1 and not variant.shape.adapter:
        ways = layouts(where.gpus, "fsdp")
        best = min(ways, key=lambda each: peak_of(variant, each, where))
        shards = f" cluster.gradient_shards={best.ranks}" if best.ranks > USUAL_SHARDS else ""
        words = f"cluster.sharding=fsdp cluster.learner_ranks={best.ranks}{shards}"
        tried.append((words, variant, best))
    tried += [(each, changed, layout) for each, changed in changes(variant)]
    single = [Suggestion(each, peak_of(changed, way, where)) for each, changed, way in tried]
    enough = [each for each in single if each.peak <= room]
    if enough:
        return enough
    parts: list[str] = []
    if tried and tried[0][2] is not layout:
        parts, layout = [tried[0][0]], tried[0][2]
    now, peak = variant, peak_of(variant, layout, where)
    while peak > room:
        steps = [(words, changed, peak_of(changed, layout, where)) for words, changed in changes(now)]
        steps = [step for step in steps if step[2] < 0.98 * peak]
        if not steps:
            return []
        each, now, peak = steps[0]
        parts.append(each)
    return [Suggestion(" ".join(parts), peak)]
