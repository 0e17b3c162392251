"""The numbers of each token before and after a step's updates, for a later look at the run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from oncurve.kl import k3
from oncurve.learner import Learner
from oncurve.metrics import Metrics
from oncurve.trainer.saving.recorder import Recorder
from oncurve.trainer.state import Collected
from oncurve.trainer.watching.observe import timer
from oncurve.types import Group, TrainBatch


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
