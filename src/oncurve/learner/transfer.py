"""The state of a learner for one of the same settings in another process, without a file in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from oncurve.learner.policy import LocalLearner


def state_of(learner: LocalLearner) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return all that the next update needs: a record, and tensors, which are views, valid until the next update.

    An adapter's base model is not among them.
    """
    record = {"attempts": learner.pace.attempts, "steps": learner.optimizer.steps, "tokens": learner.budget.tokens}
    parts = {"optimizer": learner.optimizer.state(), "frozen": learner.optimizer.frozen_here}
    if learner.reference is not None:
        record["reference"] = learner.reference.version
        parts["reference"] = learner.reference.state()
    return record, {f"{part}.{name}": tensor for part, found in parts.items() for name, tensor in found.items()}


def take_over(learner: LocalLearner, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Make `learner` as the one whose `state_of` this is, bit for bit. Raises CheckpointError: it has another model."""
    parts: dict[str, dict[str, Tensor]] = {"optimizer": {}, "frozen": {}, "reference": {}}
    for name, tensor in tensors.items():
        part, _, own = name.partition(".")
        parts[part][own] = tensor
    if learner.reference is not None and "reference" in record:
        learner.reference.take_over(record["reference"], parts["reference"])
    learner.optimizer.load_state(parts["optimizer"], record["steps"], parts["frozen"])
    learner.pace.attempts = record["attempts"]
    learner.budget.lower_to(record["tokens"])
