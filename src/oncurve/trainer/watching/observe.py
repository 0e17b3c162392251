"""The metrics of a step from its groups and its batch, the timer of its phases, and numbers of its tokens."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oncurve.base.posix import resource
from oncurve.kl import k3
from oncurve.learner import Learner
from oncurve.machine import contention
from oncurve.metrics import Metrics
from oncurve.trainer.saving.recorder import Recorder
from oncurve.trainer.state import Collected, TrainerState
from oncurve.types import Group, TrainBatch

log = logging.getLogger("oncurve.trainer")


@contextmanager
def timer(metrics: Metrics, phase: str) -> Iterator[None]:
    """Add the seconds spent inside to `time/<phase>`."""
    started = time.perf_counter()
    yield
    metrics.add(f"time/{phase}", time.perf_counter() - started)


def split_advantages(batch: TrainBatch, groups: Sequence[Group], usable: Sequence[Group]) -> tuple[Tensor | None, ...]:
    """Return the batch's advantages `(B, T)` as one `(n, T)` per group; None for a group that is not among the
    `usable`.
    """
    assert batch.advantages is not None
    sizes = [len(group.completions) for group in usable]
    found = {id(group): rows for group, rows in zip(usable, torch.split(batch.advantages, sizes), strict=True)}
    return tuple(found.get(id(group)) for group in groups)


def peak_memory_bytes() -> int:
    """Return the largest resident set this process has had, in bytes.

    On Linux since its program was started: `ru_maxrss` has the memory of the process that started it, too.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def observe_memory(metrics: Metrics, device: object) -> None:
    """Observe the peak memory so far, of the GPU's allocator, or of the process where `device`, by name, is "cpu"."""
    peak = peak_memory_bytes() if device == "cpu" else torch.cuda.max_memory_allocated()
    metrics.add("memory/peak_bytes", float(peak))


def observe_groups(metrics: Metrics, groups: Sequence[Group], dropped: int, rewarded: bool = True) -> None:
    """Rewards, lengths, endings and faults of all completions of a step, also of groups that are left out.

    Of a run that is not `rewarded`, a distillation, there are no rewards to observe: their zeros mean nothing.
    """
    for group in groups if rewarded else ():
        rewards = [score.reward for score in group.scores if score.valid]
        metrics.add_all("reward/mean", rewards)
        if len(rewards) > 1:
            mean = math.fsum(reward / len(rewards) for reward in rewards)
            deviation = math.hypot(*(reward - mean for reward in rewards))  # no square, which could overflow
            metrics.add("reward/std", deviation / math.sqrt(len(rewards) - 1))
            metrics.add("groups/constant", float(max(rewards) == min(rewards)))
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    lengths = [float(len(completion.ids)) for completion in completions]
    for key in ("completions/length", "completions/length_max"):
        metrics.add_all(key, lengths)
    metrics.add_all("tokens/sampled", [float(len(c.ids) if c.trained is None else sum(c.trained)) for c in completions])
    metrics.add_all("completions/truncated", [float(completion.truncated) for completion in completions])
    metrics.add_all("completions/invalid", [float(not score.valid) for score in scores])
    faults = [score.fault for score in scores if score.fault is not None]
    metrics.add("reward/faults", float(len(faults)))
    for fault in faults:
        metrics.add(f"faults/{fault.partition(':')[0]}", 1.0)
    for name in dict.fromkeys(name for score in scores for name in score.parts):
        values = [score.parts.get(name) for score in scores]
        metrics.add_all(f"rewards/{name}", [v for v in values if v is not None and math.isfinite(v)])
    metrics.add("groups/dropped", float(dropped))
    if any(score.step_ends for score in scores):
        metrics.add_all("completions/scored_steps", [float(len(score.step_ends)) for score in scores if score.valid])
        metrics.add_all("reward/step_mean", [reward for score in scores for reward in score.step_rewards])


def observe_batch(metrics: Metrics, batch: TrainBatch) -> None:
    """Observe the size of the advantages that the learner is given, and the distance from a teacher."""
    assert batch.advantages is not None
    metrics.add("advantage/abs_mean", batch.advantages.abs(), mask=batch.loss_mask)
    nonfinite = int((~batch.advantages.float().isfinite() & batch.loss_mask).sum())
    if nonfinite:
        metrics.add("advantage/nonfinite", float(nonfinite))
    sampled = batch.old_logprobs if batch.old_logprobs is not None else batch.rollout_logprobs
    if batch.teacher_logprobs is not None and sampled is not None:
        metrics.add("policy/teacher_kl", sampled - batch.teacher_logprobs, mask=batch.loss_mask)


@dataclass
class UntrainedUpdates:
    """Counts the updates whose batch has no trained token; the first of a run is announced in one line."""

    announced: bool = False

    def observe(self, metrics: Metrics, batch: TrainBatch, step: int) -> None:
        """Count the batch of one update of `step` where no token of it is trained."""
        if batch.token_count:
            return
        metrics.add("optim/updates_without_tokens", 1.0)
        if not self.announced:
            self.announced = True
            cut = 0 if batch.truncated is None else int((batch.valid & batch.truncated).sum())
            log.warning(
                "step %d: an update has no token to train: %d of its %d completions are truncated, and "
                "filter.mask_truncated leaves them out of the loss; raise rollout.max_new_tokens. The metric "
                "optim/updates_without_tokens counts such updates",
                step,
                cut,
                batch.size,
            )


def summarized(
    metrics: Metrics, state: TrainerState, epoch: Callable[[int], float], started: float, worked: float | None
) -> dict[str, float]:
    """Return the metrics by declared key of a step, after which the state is `state`.

    epoch    of the data, at a cursor
    started  when it began, by `time.perf_counter`
    worked   seconds of it for which other processes sampled, the mean over them; None: there are none
    """
    seconds = time.perf_counter() - started
    metrics.add("step", float(state.step))
    metrics.add("progress/prompts_seen", float(state.cursor))
    metrics.add("progress/epoch", epoch(state.cursor))
    metrics.add("time/step", seconds)
    if (waiting := contention.waiting()) is not None:  # where the system reports it
        metrics.add("time/processor_wait", waiting)
    result = metrics.result()
    result["tokens/per_second"] = result.get("tokens/sampled", 0.0) / seconds
    if worked is not None:
        result["cluster/rollout_busy"] = worked / seconds
        result["cluster/learner_busy"] = (result["time/score"] + result["time/update"]) / seconds
    return result


@contextmanager
def recording_tokens(
    recorder: Recorder | None, batch: TrainBatch, collected: Collected, learner: Learner, metrics: Metrics
) -> Iterator[None]:
    """Record numbers of each token before and after the updates inside, where this step is measured.

    They reach no loss.
    """
    for numbers in (before_updates, None, after_updates):
        if numbers is None:
            yield
        elif recorder is not None and recorder.measures():
            with timer(metrics, "score"):
                found = numbers(batch, learner)
            groups = collected.groups, collected.usable
            recorder.tokens({name: by_token(values, batch, *groups) for name, values in found.items()})


def before_updates(batch: TrainBatch, learner: Learner) -> dict[str, Tensor]:
    """Return numbers `(B, T)` of the policy that the updates begin with, by name; a learner may have none.

    before    log-probs
    entropy   of the next-token distributions
    kl        the k3 estimate of the distance from the reference, where there is one

    A batch with old log-probs and entropy has the learner's own numbers of this policy: nothing is computed again. The
    batch is unchanged: what is computed here reaches no loss.
    """
    seen = batch
    if batch.old_logprobs is None or batch.entropy is None:
        seen = learner.score(batch.having(old_logprobs=None, entropy=None), frozenset({"old", "entropy"}))
    found = {"before": seen.old_logprobs, "entropy": seen.entropy}
    if seen.old_logprobs is not None and batch.ref_logprobs is not None:
        found["kl"] = k3(seen.old_logprobs, batch.ref_logprobs)
    return {name: values for name, values in found.items() if values is not None}


def after_updates(batch: TrainBatch, learner: Learner) -> dict[str, Tensor]:
    """Return the log-probs `(B, T)` of the policy as the updates have left it, as `after`; a learner may have none."""
    scored = learner.score(batch.having(old_logprobs=None, entropy=None), frozenset({"old"})).old_logprobs
    return {} if scored is None else {"after": scored}


def by_token(values: Tensor, batch: TrainBatch, groups: Sequence[Group], usable: Sequence[Group]) -> Tensor:
    """Return `values (B, T)` of the tokens of `groups`, `(N,)` in their order, as float32 on the CPU; NaN for those of
    a group that is not among the `usable`, whose rows the batch has.
    """
    sizes = [sum(len(each.ids) for each in group.completions) for group in usable]
    parts = torch.split(values.detach().cpu().float()[batch.existing().cpu()], sizes)
    found = {id(group): part for group, part in zip(usable, parts, strict=True)}
    none = [torch.full((sum(len(each.ids) for each in group.completions),), math.nan) for group in groups]
    return torch.cat([found.get(id(group), lacking) for group, lacking in zip(groups, none, strict=True)])
