"""The nouns of oncurve, and the batch that a learner sees.

The glossary (CONTRIBUTING.md has the same one):

    prompt                  the text that the policy continues; never "query" or "question"
    completion              the tokens that follow a prompt; `trained` marks those that the policy wrote
    group                   the completions of one prompt: the unit of rollout, reward and advantage
    reward, score           a number for a completion; the reward with its steps, its parts and whether it is valid
    verifier                a reward that decides whether a completion is right
    step                    of the trainer: one rollout with its updates; of a completion: a line or another part that
                            has its own reward
    update                  one step of the optimizer, on one minibatch
    rollout                 sampling the groups of one step; a rollout engine does it
    episode                 a completion of several turns: the policy's own, and the replies of an environment between
                            them, which are context
    turn                    a span of a completion that one speaker wrote
    continuation            a completion sampled from the end of a reasoning step, to estimate whether that step is
                            right
    policy version          the number of updates of the weights that sampled a completion
    batch, row              the groups of a step as `(B, T)` tensors; a row is one completion
    minibatch, micro-batch  the whole groups of one update; the rows of one forward pass
    loss_mask               `(B, T)`, True where a token is trained; all denominators count these tokens only
    logprobs                of the policy in training; `old_`: before this step's updates; `rollout_`: as the engine
                            recorded; `ref_`: of the reference; `teacher_`: of a teacher
    token statistics        per-token numbers of one forward pass: log-prob, entropy, exact KL, value (`TokenStats`)
    kept set                the tokens that truncated sampling (top-k, top-p, min-p) chose a token from
    advantage               `(B, T)`, by how much a token is worth more than was expected
    return, value           `(B, T)`, the discounted reward to come; a critic's estimate of it
    objective               the policy's loss per token, from log-probs and advantages
    KL estimator            the KL penalty per token, between policy and reference
    aggregation             one weight per token (`token_weights`); the loss is the sum of weight times token loss
    learner, trainer        owns weights and optimizer and makes updates; runs the loop
    rank, shard             a process that makes updates together with others; a part of an update whose gradient is
                            computed by itself

An example, two completions of one prompt:

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, Literal, Self, get_args

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

Ending = Literal["eos", "stop", "length", "given", "turns", "environment", "template", "budget", "fault"]
"""How a completion ended: by an end token or a stop string; cut off at the limit; a demonstration. An episode also by
`environment.max_turns`; by its environment; by a chat template that does not go on from what was sampled; by a reply
that would pass `rollout.max_new_tokens`; by a fault of its environment."""

Messages = str | tuple[Mapping[str, Any], ...]
"""A prompt or a completion: text, or the messages of a chat."""


@dataclass(frozen=True)
class Prompt:
    """A prompt: its text, and its tokens `ids` as the policy reads them.

    `id` is the row's number in its data source: a part of the randomness key, stable over epochs and restarts.
    `columns` are the row's other columns and reach the reward by name; `messages` is the chat, if it was one.
    `teacher_ids` are its tokens as a teacher reads it; None: as the policy does.
    `limit` is the most tokens of a completion of this prompt; None: as the sampling has it. `row_ids` are the tokens of
    its row of the data, where an environment has added to these; None: `ids`.
    """

    id: int
    text: str
    ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] | None = None
    teacher_ids: tuple[int, ...] | None = None
    limit: int | None = None
    row_ids: tuple[int, ...] | None = None

    @property
    def asked(self) -> str | list[dict[str, Any]]:
        """What an environment is given: the messages of a chat, or the text."""
        return [dict(each) for each in self.messages] if self.messages else self.text


@dataclass(frozen=True)
class Turn:
    """The tokens `start` to `end` (exclusive) of an episode, written by one `role`: "assistant" is the policy. `reward`
    is the environment's for what the policy wrote in this turn; None: it gave none.
    """

    role: str
    start: int
    end: int
    text: str
    reward: float | None = None


@dataclass(frozen=True)
class Completion:
    """The text that follows a prompt: `ids` include the ending EOS or stop tokens, `text` does not.

    `logprobs[t]` is the log-probability of `ids[t]` under the distribution it was sampled from (temperature applied).
    `kept_sizes` and `kept_ids` are the kept sets of truncated sampling, None and empty without it: `kept_sizes[t]` is n
    for a set of n tokens, or -1 - n for all tokens but n; `kept_ids` are the ids of these n, int32, token after token.
    The sampler records `ended`, so it is never guessed: `"length"` is a truncated completion. `"given"` is one of the
    data, a demonstration, which no sampler has written: it has no `logprobs`.
    `trained[t]` False: the policy did not write this token (a tool did); the policy reads it and is not trained on it,
    and its entry in `logprobs` has no meaning (0 by convention). None: the policy wrote all tokens.

    Of an episode: its `turns`, the same as chat `messages`, the environment's `outcome` for the whole, the `fault` that
    keeps it out of training, and its `environment` at the end where a reward function takes it.
    """

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    ended: Ending
    sample_index: int
    policy_version: int
    trained: tuple[bool, ...] | None = None
    turns: tuple[Turn, ...] = ()
    messages: tuple[Mapping[str, Any], ...] = ()
    outcome: float | None = None
    fault: str | None = None
    environment: Any = field(default=None, repr=False, compare=False)
    kept_sizes: tuple[int, ...] | None = None
    kept_ids: bytes = b""

    @property
    def truncated(self) -> bool:
        """Return whether it was cut off at the limit."""
        return self.ended in ("length", "budget")


@dataclass(frozen=True)
class Score:
    """The reward of one completion. If not `valid`, it is in no statistic and no loss, and `fault` says why.

    `parts` are the raw values of the weighted rewards by name (None: did not apply), `weights` their weights, in the
    same order (empty where unknown). `step_ends[j]` is the index of the
    last token of step j, `step_rewards[j]` its reward, `step_offsets[j]` the offset in the text just after it (for
    display; empty where unknown). `extras` is what the rewards noted about the completion in addition to their value,
    as JSON can hold it, by "part/name". `part_steps` are the (offset, reward) of the steps that a part scored, by its
    name, before any weight.
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
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Group:
    """The completions of one prompt, and their scores (`()` until they are scored)."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...] = ()
    draw: int = 0

    def firsts(self) -> list[int]:
        """Return the numbers of the completions, but of those of one episode, which stand together, only the first."""
        before = [None, *(each.sample_index if each.turns else None for each in self.completions)]
        numbered = enumerate(zip(self.completions, before, strict=False))
        return [number for number, (each, last) in numbered if not each.turns or each.sample_index != last]


@dataclass(frozen=True)
class TokenStats:
    """Per-token numbers of one forward pass, 0 where there is no token; None unless asked for."""

    logprobs: Float[Tensor, "b T"]
    entropy: Float[Tensor, "b T"] | None = None
    full_kl: Float[Tensor, "b T"] | None = None
    values: Float[Tensor, "b T"] | None = None


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token `(b, T)`, unreduced, and `(b, T)` statistics by metric name (detached), unreduced too.

    `apart` is the part of the loss that the batch's `apart_weights` weigh; None where `loss` holds all of it.
    """

    loss: Float[Tensor, "b T"]
    stats: Mapping[str, Float[Tensor, "b T"]] = field(default_factory=dict)
    apart: Float[Tensor, "b T"] | None = None

    def __add__(self, other: TokenLoss) -> TokenLoss:
        apart = other.apart if self.apart is None else self.apart if other.apart is None else self.apart + other.apart
        return TokenLoss(self.loss + other.loss, {**self.stats, **other.stats}, apart)

    def weighted(self, batch: TrainBatch) -> Float[Tensor, ""]:
        """Return `Σ_it token_weights_it · loss_it + Σ_it apart_weights_it · apart_it`, `()`. ValueError: no weights."""
        if batch.token_weights is None:
            raise ValueError("a loss needs the batch's token_weights: batch.with_weights(aggregation(batch)) first")
        total = (self.loss * batch.token_weights).sum()
        if self.apart is None:
            return total
        if batch.apart_weights is None:
            raise ValueError("a term of its own weights needs the batch's apart_weights")
        return total + (self.apart * batch.apart_weights).sum()


@dataclass(frozen=True)
class TokenWeights:
    """Weights `(B, T)` of a batch's token losses, where the KL term or the bonus has an aggregation of its own."""

    policy: Float[Tensor, "B T"]
    apart: Float[Tensor, "B T"]


@dataclass(frozen=True)
class AdvantagesAndReturns:
    """Advantages `(B, T)`, and the returns `(B, T)` that a critic's values are trained towards."""

    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]


Axes = Literal["BT", "B", "BS", "BK", "G", "R", "NH"]
"""The axes of a batch's field: completions and tokens; completions; completions and steps; completions and rewards;
groups or rows (a tuple with one tensor of any length for each); or the tokens of all completions, one row of the tensor
after another."""

RAGGED = frozenset({"G", "R"})
"""The axes of tuples, which stay in the host's memory."""


def _axes(axes: Axes) -> dict[str, Axes]:
    return {"axes": axes}


@dataclass(frozen=True)
class TrainBatch:
    """Everything that a learner needs. `(B, T)` is over completion tokens only, padded on the right.

    completion_ids (B, T) int64     0 beyond `lengths`
    lengths        (B,)   int64     tokens of the completion, its ending token included
    loss_mask      (B, T) bool      True: this token exists and is trained; elsewhere no field is read
    valid          (B,)   bool      False: no usable reward; loss_mask is off for the whole row
    group_ids      (B,)   int64     index into `prompts`; rows of a group are adjacent
    prompts        tuple of (P_g,) int64, one per group
    teacher_prompts   likewise, as a teacher reads them; absent where it reads `prompts`
    rewards        (B,)   float64   the completion's reward, with its KL where that is in the reward; 0 if not valid
    token_rewards  (B, T) float64   the same by token: an outcome at the last token, steps at their ends, the KL at each
    truncated      (B,)   bool      the completion was cut off at the limit
    policy_versions (B,)  int64     the version of the policy that sampled it
    rollout_logprobs, old_logprobs, ref_logprobs, teacher_logprobs, values, advantages, returns, token_weights
                   (B, T)           or absent
    entropy_coef   (B,)             α of the entropy bonus, where it is adapted to a target
    apart_weights  (B, T)           of KL term and bonus, where `kl.aggregation` or `entropy.aggregation` is given
    policy_weights (B, T)           what the objective's loss is multiplied by; absent: 1
    entropy        (B, T)           of the old policy's next-token distribution, where a filter or the record reads it
    bootstrap_values  (B,)          V after the last token
    ref_hidden     (N, H)           reference hidden states of all completion tokens, row after row (`full` KL only)
    step_ends, step_rewards (B, S), step_counts (B,)   or absent
    component_rewards (B, K)        values of the K single rewards, before their weights; NaN: one does not apply
    component_weights (B, K)        their weights, the same in every row; both absent where the scores do not have them
    kept_sizes     (B, T) int32     of truncated sampling, as in `Completion`; absent where the whole vocabulary is kept
    kept_ids       tuple of (n,) int32, one per row

    Every field states its axes in its metadata, a subclass's too: `field(metadata={"axes": "BT"})`. Selecting, cutting,
    joining, moving and recording derive from them (`axes_of`), so none of them can lose a field.
    """

    completion_ids: Int[Tensor, "B T"] = field(metadata=_axes("BT"))
    lengths: Int[Tensor, "B"] = field(metadata=_axes("B"))
    loss_mask: Bool[Tensor, "B T"] = field(metadata=_axes("BT"))
    valid: Bool[Tensor, "B"] = field(metadata=_axes("B"))
    group_ids: Int[Tensor, "B"] = field(metadata=_axes("B"))
    prompts: tuple[Int[Tensor, "_"], ...] = field(metadata=_axes("G"))
    rewards: Float[Tensor, "B"] = field(metadata=_axes("B"))
    rollout_logprobs: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    old_logprobs: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    ref_logprobs: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    ref_hidden: Float[Tensor, "N H"] | None = field(default=None, metadata=_axes("NH"))
    values: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    advantages: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    returns: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    token_weights: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    apart_weights: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    policy_weights: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    entropy: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    step_ends: Int[Tensor, "B S"] | None = field(default=None, metadata=_axes("BS"))
    step_rewards: Float[Tensor, "B S"] | None = field(default=None, metadata=_axes("BS"))
    step_counts: Int[Tensor, "B"] | None = field(default=None, metadata=_axes("B"))
    truncated: Bool[Tensor, "B"] | None = field(default=None, metadata=_axes("B"))
    token_rewards: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    policy_versions: Int[Tensor, "B"] | None = field(default=None, metadata=_axes("B"))
    bootstrap_values: Float[Tensor, "B"] | None = field(default=None, metadata=_axes("B"))
    entropy_coef: Float[Tensor, "B"] | None = field(default=None, metadata=_axes("B"))
    component_rewards: Float[Tensor, "B K"] | None = field(default=None, metadata=_axes("BK"))
    component_weights: Float[Tensor, "B K"] | None = field(default=None, metadata=_axes("BK"))
    teacher_prompts: tuple[Int[Tensor, "_"], ...] | None = field(default=None, metadata=_axes("G"))
    teacher_logprobs: Float[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    kept_sizes: Int[Tensor, "B T"] | None = field(default=None, metadata=_axes("BT"))
    kept_ids: tuple[Int[Tensor, "_"], ...] | None = field(default=None, metadata=_axes("R"))

    @property
    def size(self) -> int:
        """B, the number of completions."""
        return self.completion_ids.shape[0]

    @property
    def token_count(self) -> int:
        """Tokens that are trained: the number of True in `loss_mask`."""
        return int(self.loss_mask.sum())

    def having(self, **fields: Any) -> Self:
        """Return this batch with the named fields replaced."""
        return replace(self, **fields)

    def with_advantages(self, advantages: Float[Tensor, "B T"] | AdvantagesAndReturns) -> Self:
        """Return this batch with `advantages` `(B, T)`, and with `returns` where they come with them."""
        if isinstance(advantages, AdvantagesAndReturns):
            return replace(self, advantages=advantages.advantages, returns=advantages.returns)
        return replace(self, advantages=advantages)

    def with_weights(self, weights: Float[Tensor, "B T"] | TokenWeights) -> Self:
        """Return this batch with `token_weights` `(B, T)`, which hold the global denominators, and `apart_weights` if
        given.
        """
        if isinstance(weights, TokenWeights):
            return replace(self, token_weights=weights.policy, apart_weights=weights.apart)
        return replace(self, token_weights=weights)

    def to(self, device: torch.device) -> Self:
        """Return this batch with its tensors on `device`, except ragged ones (the prompts), which models move."""
        tensors = {name: getattr(self, name) for name, axes in axes_of(self).items() if axes not in RAGGED}
        present = {name: value for name, value in tensors.items() if value is not None}
        moved: dict[str, Any] = dict(zip(present, sent(list(present.values()), device), strict=True))
        return replace(self, **moved)

    def existing(self) -> Bool[Tensor, "B T"]:
        """Return `(B, T)` bool: this token exists (trained or not)."""
        positions = torch.arange(self.completion_ids.shape[1], device=self.lengths.device)
        return positions[None, :] < self.lengths[:, None]

    def slots(self) -> Int[Tensor, "N"]:
        """Return `(N,)`: the places of all tokens, row after row, in a flattened `(B, T)`."""
        return self.existing().flatten().nonzero()[:, 0]


def axes_of(batch: TrainBatch) -> dict[str, Axes]:
    """Return the axes of every field of a batch, also of the fields that a subclass adds, in their order.

    Raises TypeError: a field states no axes, or unknown ones.
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


AnyTensor = Num[Tensor, "..."] | Bool[Tensor, "..."]


def sent(tensors: Sequence[AnyTensor], device: torch.device) -> list[AnyTensor]:
    """Return `tensors` on `device`. Those in the host's memory go in one copy, for which the host does not wait.

    They share memory there, so none of them may be changed in place.
    """
    here = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if device.type == "cpu" or not here:
        return [tensor.to(device) for tensor in tensors]
    starts = list(accumulate((-(-tensor.nbytes // 16) * 16 for tensor in here), initial=0))

    def parts(buffer: AnyTensor) -> list[AnyTensor]:
        """Return the buffer's bytes as tensors like those of `here`."""
        bytes_of = (buffer[start : start + tensor.nbytes] for start, tensor in zip(starts, here, strict=False))
        return [found.view(tensor.dtype).view(tensor.shape) for found, tensor in zip(bytes_of, here, strict=True)]

    buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    for part, tensor in zip(parts(buffer), here, strict=True):
        part.copy_(tensor)
    arrived = iter(parts(buffer.to(device, non_blocking=True)))
    return [next(arrived) if tensor.device.type == "cpu" else tensor.to(device) for tensor in tensors]
