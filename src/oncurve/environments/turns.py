"""A rollout engine for completions of several turns, over any other engine: its rows, and how it decodes them in waves.

    turn by turn:  the engine continues what is there -> a reply comes -> the reply is context -> ...

The prompts are divided into waves. A wave is decoded when all its rows wait for the policy, whichever is the first; the
others wait meanwhile. Which rows are decoded together depends on nothing else, so the same episodes give the same
bits. A row's randomness is that of its prompt, sample and turn.

Covered: any engine, on workers or not, by earlier weights or not.
Not covered: keys and values of a row are computed again in each turn.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, takewhile
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ModelError
from oncurve.environments.dialogue import Dialogue
from oncurve.environments.host import Host, Pending
from oncurve.environments.play import MOST_CALLS
from oncurve.models import Weights
from oncurve.rollout import OnGroup, RolloutEngine, Sampling, count_samples
from oncurve.types import Completion, Ending, Group, Prompt, Turn

_TURN = 1 << 40
"""Sample indices of the turns of one sample are so far apart."""
LONGEST_TOKEN = 256
"""No token has more characters: a longer reply cannot fit, and is not tokenised."""


@dataclass(eq=False)
class Row:
    """A row of tokens as it grows: an episode, or one of the rows of a program.

    start   `prompt` with what the environment has added to it
    room    the most tokens of it; of its next turn at most `most`, which ends at the strings `stop`, too
    turn    the number of its next turn; `place`: of that among the turns of all rows of the episode
    parts   the roles and what they have said; `ids` are its tokens, `rewards` belong to parts by number
    log     the items that its environment was asked, with its replies
    """

    number: int
    prompt: Prompt
    start: Prompt
    sample: int
    tools: Sequence[Any]
    room: int
    most: int
    turn: int = 0
    place: int = 0
    stop: tuple[str, ...] = ()
    parts: list[tuple[str, Completion]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)
    written: list[dict[str, Any]] = field(default_factory=list)
    ended: Ending | None = None
    outcome: float | None = None
    fault: str | None = None
    environment: Any = None
    pending: Pending | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    log: list[tuple[dict[str, Any], Any]] = field(default_factory=list)

    def fail(self, why: str) -> None:
        """End it, masked."""
        self.ended, self.fault, self.pending = "fault", f"environment: {why}", None

    def add(self, role: str, part: Completion) -> None:
        """Append what was said."""
        self.parts.append((role, part))
        self.ids += part.ids

    def reward(self, value: float | None) -> None:
        """Give the policy's turn, which is the last part, its reward."""
        if value is not None:
            self.rewards[len(self.parts) - 1] = float(value)

    def completion(self, shared: int) -> Completion:
        """Return it as a completion of the `shared` tokens at the start of its prompt."""
        own = self.start.ids[shared:] if self.turn else self.prompt.ids[-1:]  # a row has a token
        parts = [("user", unwritten("", own))] * bool(own) + self.parts
        ends = accumulate(len(part.ids) for _, part in parts)
        turns = tuple(
            Turn(role, end - len(part.ids), end, part.text, self.rewards.get(number - bool(own)))
            for number, ((role, part), end) in enumerate(zip(parts, ends, strict=True))
        )
        written = [part for _, part in parts if part.trained is None]
        of_tokens = (
            (part.ids, part.logprobs, part.trained or [True] * len(part.ids), part.kept_sizes or [-1] * len(part.ids))
            for _, part in parts
        )
        ids, logprobs, trained, sizes = (tuple(chain(*each)) for each in list(zip(*of_tokens, strict=True)) or [()] * 4)
        text, version = "\n".join(part.text for part in written), written[-1].policy_version if written else 0
        of_policy = ids, text, logprobs, self.ended or "fault", self.sample, version, trained
        of_episode = turns, tuple(self.written), self.outcome, self.fault, self.environment
        kept = sizes if {*sizes} - {-1} else None, b"".join(part.kept_ids for part in written)
        return Completion(*of_policy, *of_episode, *kept)


def unwritten(text: str, ids: Sequence[int]) -> Completion:
    """Return what the policy reads and has not written."""
    return Completion(tuple(ids), text, (0.0,) * len(ids), "given", 0, 0, (False,) * len(ids))


class TurnsEngine(Closing):
    """Samples completions of several turns with `inner`. A subclass has the replies between the turns of the policy.

    host       the environments' workers
    dialogue   makes tokens of what is said
    sampling   of a training rollout; `max_new_tokens` is for the whole completion, context included
    keep       completions keep their environment, for reward functions that take it
    longest    the most tokens of a row, prompt and completion together
    """

    def __init__(
        self,
        inner: RolloutEngine,
        host: Host,
        dialogue: Dialogue,
        sampling: Sampling,
        seed: int,
        keep: bool = False,
        longest: int | None = None,
    ) -> None:
        self.inner, self.settings, self.host, self.dialogue = inner, host.settings, host, dialogue
        self.sampling, self.seed, self.keep = sampling, seed, keep
        self._most_waves, self._longest = self.settings.waves, longest or sys.maxsize
        self._trained: defaultdict[str, float] = defaultdict(float)  # what was noted in the last training rollout

    @property
    def exact(self) -> bool:
        """Return whether recorded log-probs are those of the weights that sampled."""
        return self.inner.exact

    def follow(self, weights: Weights) -> None:
        """Sample from these weights from now on."""
        self.inner.follow(weights)

    def worked(self) -> float | None:
        """Return the seconds for which other processes have sampled."""
        return self.inner.worked()

    def rest(self) -> None:
        """End what training alone needs, where `inner` has such."""
        getattr(self.inner, "rest", lambda: None)()

    def close(self) -> None:
        """End the environments and `inner`."""
        self.host.close()
        self.inner.close()

    def measured(self) -> Mapping[str, float]:
        """Return the metrics of the last training rollout's episodes, and those of `inner` since the last call."""
        found, self._trained = dict(self._trained), defaultdict(float)
        count = found.pop("episodes", 1.0)
        for name in found.keys() & {"turns/mean", "turns/limit", "turns/rewarded"}:
            found[name] /= count
        return {**self.inner.measured(), **found}

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        """Return one group of episodes per prompt, in the prompts' order, without scores.

        Raises what `inner` raises, and ConfigError: the environment's code cannot be loaded.
        """
        self._noted: defaultdict[str, float] = defaultdict(float)
        if sampling is None:  # an evaluation brings its own, and is not measured
            self._trained = self._noted
        self._prompts, self._draw, self._on_group = prompts, draw, on_group
        self._sampling = sampling or self.sampling
        self._firsts = first_samples or count_samples(prompts, self._sampling.group_size)
        self._rows: list[list[Row]] = [[] for _ in prompts]
        self._groups: dict[int, Group] = {}
        count = min(self._most_waves, len(prompts))
        waves = [range(number, len(prompts), count) for number in range(count)]
        try:
            self._begin()
            while waves:
                wave = self._hear(waves)
                self._turn(wave)
                waves.remove(wave)
                waves += [wave] * any(index not in self._groups for index in wave)
            return [self._groups[index] for index in range(len(prompts))]
        finally:
            self._give_up()

    def _begin(self) -> None:
        """Begin the episodes."""

    def _hear(self, waves: Sequence[range]) -> range:
        """Wait until the next turn of each row of one of these waves is the policy's, or the row has `ended`."""
        raise NotImplementedError

    def _answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Hand over a turn that the policy has written, and its tool calls; `good` are those that can be made."""

    def _over(self, index: int) -> bool:
        """Return whether nothing of a group's episodes is left to do."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """Cancel what others are still doing."""

    def _turn(self, wave: range) -> None:
        """Decode the next turn of a wave: whole groups, whose rows share a prompt, where it is the first one."""
        for index in wave:
            if index not in self._groups and self._over(index):
                self._finish(index)
        groups = [self._rows[index] for index in wave if index not in self._groups]
        if all(map(self._alike, groups)) and not any(row.turn for index in wave for row in self._rows[index]):
            self._decode(groups)
            return
        left = [row for rows in groups for row in rows if row.ended is None]
        for stop in sorted({row.stop for row in left}):
            self._decode([[row] for row in left if row.stop == stop], stop)

    def _alike(self, rows: Sequence[Row]) -> bool:
        """Return whether a group has the rows that it samples, and they begin with the same tokens."""
        same = all((row.start, row.most) == (rows[0].start, rows[0].most) for row in rows)
        return len(rows) == self._sampling.group_size and same and not any(row.ended or row.stop for row in rows)

    def _decode(self, groups: Sequence[Sequence[Row]], stop: Sequence[str] = ()) -> None:
        """Have the engine write the next turn of rows, in groups with the same tokens, all of one size. It ends at the
        strings `stop`, too. As soon as some are there, they are handed over.
        """

        def take(number: int, group: Group) -> None:
            for row, completion in zip(groups[number], group.completions, strict=True):
                self._take(row, completion)

        firsts = [rows[0] for rows in groups]
        prompts = [
            replace(row.start, ids=(*row.start.ids, *row.ids), limit=min(row.room - len(row.ids), row.most))
            for row in firsts
        ]
        both = {"group_size": max(map(len, groups), default=1), "stop": (*self._sampling.stop, *stop)}
        samples = [row.sample + row.place * _TURN for row in firsts]
        if groups:
            self.inner.generate(prompts, self._draw, self._sampling.model_copy(update=both), take, samples)

    def _take(self, row: Row, completion: Completion) -> None:
        """Take in a turn that the policy has written, and hand it over."""
        before = (*row.start.ids, *row.ids)
        row.add("assistant", completion)
        row.turn, row.place = row.turn + 1, row.place + 1
        message, calls = self.dialogue.parsed(before, completion.ids, completion.text, row.tools)
        good = [call for call in calls if not isinstance(call, str)]
        if good:
            message["tool_calls"] = [
                {"type": "function", "id": f"c{row.place * MOST_CALLS + number:08x}", "function": call}
                for number, call in enumerate(good)
            ]
        row.written.append(message)
        if row.tools:
            self._noted["tools/calls"] += len(calls)
            self._noted["tools/errors"] += len(calls) - len(good)
        self._answer(row, completion, calls, good)

    def _finish(self, index: int) -> None:
        """Make the group of a prompt whose episodes are over."""
        rows = sorted(self._rows[index], key=lambda row: row.number)
        starts = [row.start for row in rows if row.turn] or [rows[0].prompt]
        shared = len(list(takewhile(lambda ids: len(set(ids)) == 1, zip(*(each.ids for each in starts), strict=False))))
        prompt = replace(starts[0], ids=starts[0].ids[:shared])
        self._groups[index] = Group(prompt, tuple(row.completion(shared) for row in rows), draw=self._draw)
        for episode in ([*each] for _, each in groupby(rows, lambda row: row.number)):
            turns = float(sum(row.turn for row in episode))
            self._noted["episodes"] += 1.0
            self._noted["turns/mean"] += turns
            self._noted["turns/limit"] += any(row.ended == "turns" for row in episode)
            self._noted["turns/rewarded"] += sum(map(bool, chain(*(row.rewards.values() for row in episode))))
            self._noted["environment/faults"] += any(row.fault is not None for row in episode)
            self._noted["turns/max"] = max(self._noted["turns/max"], turns)
        if self._on_group is not None:
            self._on_group(index, self._groups[index])

    def _context(self, row: Row, said: Sequence[dict[str, Any]], ended: Ending) -> Ending | None:
        """Append what an environment says; the ending, where that cannot be."""
        left, texts = row.room - len(row.ids), [str(message["content"]) for message in said]
        if sum(map(len, texts)) > left * LONGEST_TOKEN:
            return "budget"
        history = [*row.start.messages, *row.written[:-1]] if row.start.messages else ()
        try:
            ids = self.dialogue.reply(history, row.written[-1], said, row.tools, ended == "eos")
        except ModelError:
            return "template"
        if len(ids) >= left:
            return "budget"
        row.add(said[0]["role"] if said else "user", unwritten("\n".join(texts), ids))
        row.written += said
        return None
