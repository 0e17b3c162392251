"""The settings that every learner has."""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from oncurve.components import Component, Impossible
from oncurve.learner.optimizer.update import MasterKind, MomentKind, Schedule
from oncurve.learner.protocol import Learner

Decay = Annotated[float, Field(ge=0, lt=1)]


class LearnerSettings(Component):
    """The optimizer, and how a batch becomes updates: what every kind of learner has."""

    learning_rate: float = Field(default=1e-6, ge=0)
    """Peak of the schedule."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's β₁ and β₂."""

    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's ε."""

    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""

    masters: MasterKind = "float32"
    """Master weights of bfloat16 weights. "float32": a copy, 4 more bytes per parameter; "split": the weight is the
    master's high half, an int16 its low half, 2 more bytes per parameter, and the same updates."""

    moments: MomentKind = "float32"
    """AdamW's two averages: "float32", 8 bytes per parameter, or "bfloat16", 4, rounded stochastically, so that they
    are right on average."""

    max_grad_norm: float = Field(default=1.0, ge=0)
    """The gradient's norm is scaled down to this; 0: no clipping."""

    schedule: Schedule = "constant"
    """After the warm-up: "constant", or "linear" or "cosine" down to 0 at the last update."""

    warmup_steps: int = Field(default=0, ge=0, le=10**9)
    """Updates over which the learning rate rises to its peak."""

    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """In place of `warmup_steps`: the share of the run's updates over which it rises, rounded up to a whole update."""

    ppo_epochs: int = Field(default=1, ge=1, le=10**4)
    """PPO epochs: how many times each batch is passed over."""

    minibatches: int = Field(default=1, ge=1)
    """Minibatches of a PPO epoch, each of whole groups and one optimizer update."""

    skip_empty_updates: bool = False
    """Make no step in an update whose gradient has the norm 0: weights, AdamW's averages and its count of steps stay
    as they are, and the schedule goes on. Otherwise AdamW's averages and weight decay move the weights there."""

    target_kl: float | None = Field(default=None, gt=0)
    """Leave out the other updates of a step after one whose `policy/kl_old`, the KL from the policy that sampled to the
    policy before that update, is above this; none: make all of them."""

    tokens_per_micro_batch: int = Field(default=16384, ge=1, le=10**9)
    """The most tokens (each prompt once per group) of one forward and backward pass. On a CPU a pass has no more than
    2048, or 16 prompts where that is more: larger ones are no faster there. Halved for the rest of the run whenever a
    GPU runs out of memory."""

    gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the layer again there: less memory for
    activations, a third more work."""

    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """The old policy's log-probs where the ratio to it can leave 1 (several updates per rollout, or an engine that is
    not exact): "recompute" them with the learner before the first update, or use the sampler's ("rollout"). Without a
    `[correction]` completions by older weights always have the sampler's."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda learner: learner.warmup_steps > 0 and learner.warmup_ratio > 0,
            "learner.warmup_ratio: learner.warmup_steps says how long the warm-up is; set one of them to 0",
        ),
    )

    def warmup(self, updates: int) -> int:
        """Return the updates over which the learning rate rises, of a run of so many `updates`."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * updates)

    @property
    def adamw(self) -> dict[str, Any]:
        """The arguments of `MasterAdamW` that these settings have."""
        names = ("betas", "epsilon", "weight_decay", "masters", "moments", "skip_empty_updates")
        return {name: getattr(self, name) for name in names}

    @property
    def depends_on_length(self) -> bool:
        """Return whether the learning rate of an update depends on the number of updates of the run."""
        return self.schedule != "constant" or self.warmup_ratio > 0

    @property
    def built_in(self) -> bool:
        """Return whether the learner is oncurve's own: the forecast of memory and time then holds."""
        return False

    def build(self, *parts: Any, **more: Any) -> Learner:
        """Return the learner of a run; `LearnerConfig.build` says what it is given."""
        raise TypeError(f"{type(self).__name__} must define build()")
