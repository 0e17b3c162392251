"""The nouns of oncurve, and the one batch a learner sees.

A *prompt* is asked; the policy writes *completions*; the completions of one prompt are a *group*; each gets a
*score*; groups are collated into a `TrainBatch` of `(B, T)` tensors over completion tokens only.

A worked example, two completions of one prompt:

    prompt = Prompt(id=7, text="2+2=", ids=(5, 9, 5, 3), columns={"answer": "4"})
    right  = Completion(ids=(6, 2), text="4", logprobs=(-0.3, -0.1), ended="eos", sample_index=0, policy_version=0)
    wrong  = Completion(ids=(7, 7, 7), text="555", logprobs=(-2.0, -1.0, -1.0), ended="length", sample_index=1,
                        policy_version=0)
    group  = Group(prompt, (right, wrong), (Score(1.0), Score(0.0)), draw=0)

and in the batch of that group (B = 2, T = 3):

    completion_ids [[6, 2, 0], [7, 7, 7]]    lengths [2, 3]    loss_mask [[1, 1, 0], [1, 1, 1]]    group_ids [0, 0]
    advantages     [[.71, .71, 0], [-.71, -.71, -.71]]         prompts   ([5, 9, 5, 3],)           valid     [1, 1]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

__all__ = [
    "Axes",
    "Completion",
    "Ending",
    "Graded",
    "Group",
    "LabelledSteps",
    "Messages",
    "PreferencePair",
    "Prompt",
    "Score",
    "Streams",
    "TokenLoss",
    "TokenWeights",
    "TrainBatch",
    "axes_of",
]

Ending = Literal["eos", "stop", "length"]

Messages = str | tuple[Mapping[str, Any], ...]
"""A prompt or a completion: text, or the messages of a chat."""


@dataclass(frozen=True)
class Prompt:
    """What is asked.

    `id` is the row's number in its data source: a part of the randomness key, stable over epochs and restarts.
    `columns` are the row's other columns and reach the reward by name; `messages` is the chat, if it was one.
    """

    id: int
    text: str
    ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True)
class Completion:
    """What the policy wrote: `ids` include the ending EOS or stop tokens, `text` does not.

    `logprobs[t]` is the log-probability of `ids[t]` under the distribution it was sampled from (temperature
    applied). `ended` is recorded by the sampler, never guessed: `"length"` is a truncated completion.
    """

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    ended: Ending
    sample_index: int
    policy_version: int


@dataclass(frozen=True)
class Score:
    """The reward of one completion. Where not `valid` it takes no part in statistics or loss, and `fault` says why.

    `parts` are the weighted rewards' raw values by name (None: did not apply). `step_ends[j]` is the index of
    the last token of step j, `step_rewards[j]` its reward, `step_offsets[j]` where in the text it ends (the offset
    just behind it; for people, and empty where nobody knows). `extras` is what the rewards noted about the completion
    beside their value, as JSON can hold it, by "part/name". `part_steps` are the (offset, reward) of the steps that a
    part judged, by its name, before any weight.
    """

    reward: float
    valid: bool = True
    parts: Mapping[str, float | None] = field(default_factory=dict)
    fault: str | None = None
    step_ends: tuple[int, ...] = ()
    step_rewards: tuple[float, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    step_offsets: tuple[int, ...] = ()
    part_steps: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """The completions of one prompt, and their scores once a scorer has seen them (`()` before)."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...] = ()
    draw: int = 0


@dataclass(frozen=True)
class Streams:
    """What one forward pass gives the losses: `(b, T)` each, 0 where there is no token; absent unless asked for."""

    logprobs: Tensor
    entropy: Tensor | None = None
    full_kl: Tensor | None = None
    values: Tensor | None = None


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token `(b, T)`, unreduced, and `(b, T)` statistics by metric name (detached), unreduced too.

    `kl` is the part of the loss that the batch's `kl_weights` weigh; None where `loss` holds all of it.
    """

    loss: Tensor
    stats: Mapping[str, Tensor] = field(default_factory=dict)
    kl: Tensor | None = None

    def __add__(self, other: TokenLoss) -> TokenLoss:
        kl = other.kl if self.kl is None else self.kl if other.kl is None else self.kl + other.kl
        return TokenLoss(self.loss + other.loss, {**self.stats, **other.stats}, kl)

    def weighted(self, batch: TrainBatch) -> Tensor:
        """`Σ_it token_weights_it · loss_it + Σ_it kl_weights_it · kl_it`, `()`. Raises ValueError without weights."""
        if batch.token_weights is None:
            raise ValueError("a loss needs the batch's token_weights: batch.with_weights(aggregation(batch)) first")
        total = (self.loss * batch.token_weights).sum()
        if self.kl is None:
            return total
        if batch.kl_weights is None:
            raise ValueError("a KL term of its own weights needs the batch's kl_weights")
        return total + (self.kl * batch.kl_weights).sum()


@dataclass(frozen=True)
class TokenWeights:
    """Weights `(B, T)` of a batch's token losses, where the KL term has an aggregation of its own."""

    policy: Tensor
    kl: Tensor


@dataclass(frozen=True)
class Graded:
    """Advantages `(B, T)`, and the returns `(B, T)` that a critic's values are trained towards."""

    advantages: Tensor
    returns: Tensor


Axes = Literal["BT", "B", "BS", "G", "NH"]
"""The axes of a batch's field: completions and tokens; completions; completions and steps; groups (a tuple with one
tensor of any length per group); or the tokens of all completions, one row of the tensor after another."""


def _axes(axes: Axes) -> dict[str, Axes]:
    return {"axes": axes}


@dataclass(frozen=True)
class TrainBatch:
    """Everything a learner needs and nothing else. Shapes: `(B, T)` over completion tokens, padded on the right.

    completion_ids (B, T) int64     0 beyond `lengths`
    lengths        (B,)   int64     tokens of the completion, its ending token included
    loss_mask      (B, T) bool      True: this token exists and is trained
    valid          (B,)   bool      False: no usable reward; loss_mask is off for the whole row
    group_ids      (B,)   int64     index into `prompts`; rows of a group are adjacent
    prompts        tuple of (P_g,) int64, one a group
    rewards        (B,)   float64   the completion's reward, with its KL where that is in the reward; 0 if not valid
    token_rewards  (B, T) float64   the same by token: an outcome at the last token, steps at their ends, the KL at each
    truncated      (B,)   bool      the completion was cut off at the limit
    policy_versions (B,)  int64     the version of the policy that sampled it
    rollout_logprobs, old_logprobs, ref_logprobs, values, advantages, returns, token_weights   (B, T) or absent
    kl_weights     (B, T)           of the KL term, where `kl.aggregation` gives it weights of its own
    values_beyond  (B,)             V after the last token
    ref_hidden     (N, H)           reference hidden states of all completion tokens, row after row (`full` KL only)
    step_ends, step_rewards (B, S), step_counts (B,)   or absent

    Every field states its axes in its metadata, a subclass's too. Selecting, cutting, joining, moving and recording
    follow from them (`axes_of`), so a field cannot be lost on the way:

        @dataclass(frozen=True)
        class WithTeacher(TrainBatch):
            teacher_logprobs: Tensor | None = field(default=None, metadata={"axes": "BT"})
    """

    completion_ids: Tensor = field(metadata=_axes("BT"))
    lengths: Tensor = field(metadata=_axes("B"))
    loss_mask: Tensor = field(metadata=_axes("BT"))
    valid: Tensor = field(metadata=_axes("B"))
    group_ids: Tensor = field(metadata=_axes("B"))
    prompts: tuple[Tensor, ...] = field(metadata=_axes("G"))
    rewards: Tensor = field(metadata=_axes("B"))
    rollout_logprobs: Tensor | None = field(default=None, metadata=_axes("BT"))
    old_logprobs: Tensor | None = field(default=None, metadata=_axes("BT"))
    ref_logprobs: Tensor | None = field(default=None, metadata=_axes("BT"))
    ref_hidden: Tensor | None = field(default=None, metadata=_axes("NH"))
    values: Tensor | None = field(default=None, metadata=_axes("BT"))
    advantages: Tensor | None = field(default=None, metadata=_axes("BT"))
    returns: Tensor | None = field(default=None, metadata=_axes("BT"))
    token_weights: Tensor | None = field(default=None, metadata=_axes("BT"))
    kl_weights: Tensor | None = field(default=None, metadata=_axes("BT"))
    step_ends: Tensor | None = field(default=None, metadata=_axes("BS"))
    step_rewards: Tensor | None = field(default=None, metadata=_axes("BS"))
    step_counts: Tensor | None = field(default=None, metadata=_axes("B"))
    truncated: Tensor | None = field(default=None, metadata=_axes("B"))
    token_rewards: Tensor | None = field(default=None, metadata=_axes("BT"))
    policy_versions: Tensor | None = field(default=None, metadata=_axes("B"))
    values_beyond: Tensor | None = field(default=None, metadata=_axes("B"))

    @property
    def size(self) -> int:
        """B, the number of completions."""
        return self.completion_ids.shape[0]

    @property
    def token_count(self) -> int:
        """Tokens that are trained: the number of True in `loss_mask`."""
        return int(self.loss_mask.sum())

    def having(self, **streams: Any) -> Self:
        """This batch with the named fields replaced."""
        return replace(self, **streams)

    def with_advantages(self, advantages: Tensor | Graded) -> Self:
        """This batch with `advantages` `(B, T)`, and with `returns` where they come with them."""
        if isinstance(advantages, Graded):
            return replace(self, advantages=advantages.advantages, returns=advantages.returns)
        return replace(self, advantages=advantages)

    def with_weights(self, weights: Tensor | TokenWeights) -> Self:
        """This batch with `token_weights` `(B, T)`, which hold the global denominators, and `kl_weights` if given."""
        if isinstance(weights, TokenWeights):
            return replace(self, token_weights=weights.policy, kl_weights=weights.kl)
        return replace(self, token_weights=weights)

    def to(self, device: torch.device) -> Self:
        """This batch with its tensors on `device`; what is ragged (the prompts) stays, and models move it."""
        tensors = {name: getattr(self, name) for name, axes in axes_of(self).items() if axes != "G"}
        return replace(self, **{name: value.to(device) for name, value in tensors.items() if value is not None})

    def existing(self) -> Tensor:
        """`(B, T)` bool: this token exists (trained or not)."""
        positions = torch.arange(self.completion_ids.shape[1], device=self.lengths.device)
        return positions[None, :] < self.lengths[:, None]


def axes_of(batch: TrainBatch) -> dict[str, Axes]:
    """The axes of every field of a batch, also of the fields that a subclass adds, in their order.

    Raises TypeError: a field states none, or ones that there are not.
    """
    found: dict[str, Axes] = {}
    for entry in fields(batch):
        axes: Any = entry.metadata.get("axes")
        if axes not in get_args(Axes):
            known = ", ".join(get_args(Axes))
            raise TypeError(
                f"the field {entry.name} of {type(batch).__name__} must state its axes, one of {known}: "
                f'{entry.name}: ... = field(metadata={{"axes": "BT"}}); it states {axes!r}'
            )
        found[entry.name] = axes
    return found


@dataclass(frozen=True)
class PreferencePair:
    """Two completions of one prompt, of which one is the better: what an outcome reward model learns from.

    Example: `PreferencePair("2+2=", "4", "5")`. `margin`: by how much it should win.
    """

    prompt: Messages
    chosen: Messages
    rejected: Messages
    margin: float = 0.0


@dataclass(frozen=True)
class LabelledSteps:
    """A completion and what is known of its steps: what a process reward model learns from.

    `ends[j]` is the offset in `completion` just behind step j, `labels[j]` in 0 ... 1 says whether the step is right,
    or what share of the ways on from it are; None: nobody said.

    Example: `LabelledSteps("2+2+1=", "4+1\\n6", (4, 5), (1.0, 0.0))`.
    """

    prompt: Messages
    completion: str
    ends: tuple[int, ...]
    labels: tuple[float | None, ...]
