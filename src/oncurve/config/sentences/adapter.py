"""The plan's sentences about an adapter: what is trained, what the reference is, and a learning rate too low for it."""

from __future__ import annotations

from dataclasses import dataclass

from oncurve.config.sections import RunConfig

FULL_RATE = 2e-6
"""Learning rates up to this are those of full fine-tuning; an adapter takes about ten times as much."""


@dataclass(frozen=True)
class AdapterFacts:
    """The adapter of a loaded model. Example: `AdapterFacts(16, 32.0, 168, 8_798_208, 17_596_416)`.

    layers        that it is on
    parameters    that are trained
    nbytes        of a frozen copy of it
    """

    rank: int
    alpha: float
    layers: int
    parameters: int
    nbytes: int


def adapter_words(config: RunConfig, adapter: AdapterFacts | None, of: int | None) -> list[str]:
    """What is trained, in one sentence; none without an adapter. `of`: the model's own parameters."""
    lora = config.lora
    if adapter is None and not lora.adapted:
        return []
    origin = f" from {lora.path}" if lora.path is not None else ""
    if adapter is None:
        rank = f" of rank {lora.rank} (α {lora.scaled_by:g})" if not origin else ""
        where = "all linear layers" if lora.targets == "all-linear" else " and ".join(lora.targets)
        on = f" on {where}" if not origin else ""
        return [f"An adapter{origin}{rank}{on} is trained; the model's own weights stay as they are."]
    share = f", {adapter.parameters / of:.2%} of the model's" if of else ""
    return [
        f"An adapter{origin} of rank {adapter.rank} (α {adapter.alpha:g}) on {adapter.layers:,} linear layers is "
        f"trained, {adapter.parameters:,} parameters{share}; the model's own weights stay as they are."
    ]


def reference_words(config: RunConfig, adapter: AdapterFacts | None) -> str:
    """What the reference of a policy with an adapter is, and the memory that it takes."""
    copy = "a frozen copy of the adapter" + ("" if adapter is None else f" ({adapter.nbytes / 1e6:,.3g} MB)")
    if config.lora.path is not None:
        return f"that is the model with {copy}: no second model"
    moves = f", and from its first move with {copy}" if config.following.every else ""
    return f"that is the model with its adapter off{moves}: no second model"


def trained_too_slowly(config: RunConfig) -> bool:
    """Whether an adapter is trained at a learning rate of full fine-tuning."""
    return config.lora.adapted and 0 < config.learner.learning_rate <= FULL_RATE
