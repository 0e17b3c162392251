"""The rows of a rollout of episodes, and the loop that decodes their turns wave by wave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol

from oncurve.base.errors import ModelError
from oncurve.environments.dialogue import Dialogue, TemplateError
from oncurve.environments.host import Host, Pending
from oncurve.environments.play import MOST_CALLS
from oncurve.environments.settings import EnvironmentSettings
from oncurve.rollout import OnGroup, RolloutEngine, Sampling
from oncurve.types import Completion, Ending, Group, Prompt, Turn

_TURN = 1 << 40
"""Sample indices of the turns of one sample are so far apart."""
LONGEST_TOKEN = 256
"""No token has more characters: a longer reply cannot fit, and is not tokenised."""


@dataclass(eq=False)
class Row:
    """A row of tokens as it grows: an episode, or one of the rows of a program.

    room    the most tokens of it; of its next turn at most `most`, which ends at the strings `stop`, too
    turn    the number of its next turn; `place`: of that among the turns of all rows of the episode
    """

    number: int
    prompt: Prompt
    sample: int
    tools: Sequence[Any]
    room: int
    most: int
    turn: int = 0
    place: int = 0
    stop: tuple[str, ...] = ()
    start: Prompt | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    kept_sizes: list[int] = field(default_factory=list)
    kept_ids: bytes = b""
    turns: list[Turn] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    version: int = 0
    ended: Ending | None = None
    outcome: float | None = None
    fault: str | None = None
    environment: Any = None
    pending: Pending | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    log: list[tuple[dict[str, Any], Any]] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Return whether nothing of it is left to do."""
        return self.ended is not None and self.pending is None

    def fail(self, why: str) -> None:
        """End it, masked."""
        self.ended, self.fault, self.pending = "fault", f"environment: {why}", None

    def hear(self, role: str, text: str, ids: Sequence[int]) -> None:
        """Append context."""
        self.turns.append(Turn(role, len(self.ids), len(self.ids) + len(ids), text))
        self.ids += ids
        self.logprobs += [0.0] * len(ids)
        self.trained += [False] * len(ids)
        self.kept_sizes += [-1] * len(ids)

    def write(self, completion: Completion) -> None:
        """Append what the policy has written."""
        self.turns.append(Turn("assistant", len(self.ids), len(self.ids) + len(completion.ids), completion.text))
        self.ids += completion.ids
        self.logprobs += completion.logprobs
        self.trained += [True] * len(completion.ids)
        self.kept_sizes += completion.kept_sizes or [-1] * len(completion.ids)
        self.kept_ids += completion.kept_ids
        self.version = completion.policy_version
        self.turn, self.place = self.turn + 1, self.place + 1

    def reward(self, value: float | None) -> None:
        """Give the policy's last turn its reward."""
        if value is not None:
            at = max(number for number, turn in enumerate(self.turns) if turn.role == "assistant")
            self.turns[at] = replace(self.turns[at], reward=float(value))


class Episodes(Protocol):
    """The engine that a rollout is a call of, as it sees it."""

    inner: RolloutEngine
    host: Host
    dialogue: Dialogue
    settings: EnvironmentSettings
    seed: int
    keep: bool
    warned: set[str]


class Rollout:
    """One call of `engine`. A subclass has the replies between the turns of the policy."""

    def __init__(
        self,
        engine: Episodes,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling,
        firsts: Sequence[int],
        on_group: OnGroup | None,
        noted: defaultdict[str, float],
    ) -> None:
        self._engine, self._draw, self._sampling, self._on_group = engine, draw, sampling, on_group
        self._noted = noted
        self._about = engine.host.about()
        self._firsts, self._prompts, self._most_waves = firsts, prompts, engine.settings.waves
        self._rows: list[list[Row]] = [[] for _ in prompts]
        self._groups: dict[int, Group] = {}

    def begin(self) -> None:
        """Begin the episodes."""

    def hear(self, waves: Sequence[range]) -> range:
        """Wait until the next turn of each row of one of these waves is the policy's, or the row has `ended`."""
        raise NotImplementedError

    def answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Hand over a turn that the policy has written, and its tool calls; `good` are those that can be made."""
        raise NotImplementedError

    def over(self, index: int) -> bool:
        """Return whether nothing of a group's episodes is left to do."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Cancel what others are still doing."""
        raise NotImplementedError

    def run(self) -> list[Group]:
        """Play all episodes."""
        self.begin()
        waves = self._waves()
        while waves:
            wave = self.hear(waves)
            self._turn(wave)
            waves.remove(wave)
            waves += [wave] * any(index not in self._groups for index in wave)
        return [self._groups[index] for index in range(len(self._prompts))]

    def _waves(self) -> list[range]:
        count = min(self._most_waves, len(self._prompts))
        return [range(number, len(self._prompts), count) for number in range(count)]

    def _all(self) -> list[Row]:
        return [row for rows in self._rows for row in rows]

    def _turn(self, wave: range) -> None:
        """Decode the next turn of a wave."""
        for index in wave:
            if index not in self._groups and self.over(index):
                self._finish(index)
        left = [index for index in wave if index not in self._groups]
        rows = [row for index in wave for row in self._rows[index]]
        if self._alike(left) and all(row.turn == 0 for row in rows):
            self._decode_groups(left)
            return
        rows = [row for row in rows if row.ended is None]
        for stop in sorted({row.stop for row in rows}):
            self._decode_rows([row for row in rows if row.stop == stop], stop)

    def _alike(self, indices: Sequence[int]) -> bool:
        """Return whether the rows of each group are as many as it samples, and begin with the same tokens."""
        size = self._sampling.group_size
        return all(
            len(self._rows[index]) == size
            and all(row.start == self._rows[index][0].start and not row.stop for row in self._rows[index])
            for index in indices
        )

    def _decode_groups(self, indices: Sequence[int]) -> None:
        """Decode the first turn of whole groups, whose rows share a prompt."""
        rows = [self._rows[index] for index in indices]
        if rows:
            prompts = [group[0].start or group[0].prompt for group in rows]
            samples = [group[0].sample for group in rows]
            self._generate(rows, prompts, self._sampling, samples)

    def _decode_rows(self, rows: Sequence[Row], stop: Sequence[str] = ()) -> None:
        """Decode the next turn of single rows, which ends at the strings `stop`, too."""
        prompts = [
            replace(row.start, ids=row.start.ids + tuple(row.ids), limit=min(row.room - len(row.ids), row.most))
            for row in rows
            if row.start is not None
        ]
        alone = self._sampling.model_copy(update={"group_size": 1, "stop": (*self._sampling.stop, *stop)})
        samples = [row.sample + row.place * _TURN for row in rows]
        self._generate([[row] for row in rows], prompts, alone, samples)

    def _generate(
        self, rows: Sequence[Sequence[Row]], prompts: Sequence[Prompt], sampling: Sampling, samples: Sequence[int]
    ) -> None:
        """Have the engine write a turn of each row; as soon as some are there, they are handed over."""

        def take(number: int, group: Group) -> None:
            self._take(rows[number], group.completions)

        self._engine.inner.generate(prompts, self._draw, sampling, take, samples)

    def _take(self, rows: Sequence[Row], completions: Sequence[Completion]) -> None:
        """Take in the turns that the policy has written, and hand them over."""
        for row, completion in zip(rows, completions, strict=True):
            before = len(row.ids)
            row.write(completion)
            assert row.start is not None
            prompt_ids = (*row.start.ids, *row.ids[:before])
            message, calls = self._engine.dialogue.parsed(prompt_ids, completion.ids, completion.text, row.tools)
            good = [call for call in calls if not isinstance(call, str)]
            if good:
                message["tool_calls"] = [
                    {"type": "function", "id": f"c{row.place * MOST_CALLS + number:08x}", "function": call}
                    for number, call in enumerate(good)
                ]
            row.written.append(message)
            if row.tools:
                self._note("tools/calls", float(len(calls)))
                self._note("tools/errors", float(len(calls) - len(good)))
            self.answer(row, completion, calls, good)

    def _finish(self, index: int) -> None:
        """Make the group of a prompt whose episodes are over."""
        rows = sorted(self._rows[index], key=lambda row: row.number)
        starts = [row.start.ids for row in rows if row.start is not None]
        shared = len(list(takewhile(lambda ids: len(set(ids)) == 1, zip(*starts, strict=False))))
        first = next((row.start for row in rows if row.start is not None), rows[0].prompt)
        prompt = replace(first, ids=first.ids[:shared]) if starts else first
        self._groups[index] = Group(prompt, tuple(_completion(row, shared) for row in rows), draw=self._draw)
        for row in rows:
            self._note("episodes", 1.0)
            self._note("turns/mean", float(row.turn))
            self._note("turns/limit", float(row.ended == "turns"))
            self._note("turns/rewarded", float(sum(bool(turn.reward) for turn in row.turns)))
            self._note("environment/faults", float(row.fault is not None))
            self._noted["turns/max"] = max(self._noted["turns/max"], float(row.turn))
        if self._on_group is not None:
            self._on_group(index, self._groups[index])

    def _note(self, name: str, value: float) -> None:
        self._noted[name] += value

    def _context(self, row: Row, said: Sequence[dict[str, Any]], ended: Ending) -> Ending | None:
        """Append what an environment says; the ending, where that cannot be."""
        left = row.room - len(row.ids)
        if sum(len(str(message["content"])) for message in said) > left * LONGEST_TOKEN:
            return "budget"
        assert row.start is not None
        history = [*row.start.messages, *row.written[:-1]] if row.start.messages else ()
        try:
            ids = self._engine.dialogue.reply(history, row.written[-1], said, row.tools, ended == "eos")
        except TemplateError:
            return "template"
        except ModelError as error:
            row.fail(str(error))
            return None
        if len(ids) >= left:
            return "budget"
        row.hear(said[0]["role"] if said else "user", "\n".join(str(each["content"]) for each in said), ids)
        row.written += said
        return None


def _completion(row: Row, shared: int) -> Completion:
    """Return an episode as a completion of the `shared` tokens at the start of its prompt."""
    own = row.prompt.ids[-1:] if row.start is None else row.start.ids[shared:]
    if not own and not row.ids:
        own = row.prompt.ids[-1:]  # a fault before the first turn; a row has a token
    if own:
        row.turns = [Turn("user", 0, len(own), "")] + [
            replace(turn, start=turn.start + len(own), end=turn.end + len(own)) for turn in row.turns
        ]
    return Completion(
        (*own, *row.ids),
        "\n".join(turn.text for turn in row.turns if turn.role == "assistant"),
        (*[0.0] * len(own), *row.logprobs),
        row.ended or "fault",
        row.sample,
        row.version,
        (*[False] * len(own), *row.trained),
        tuple(row.turns),
        tuple(row.written),
        row.outcome,
        row.fault,
        row.environment,
        (*[-1] * len(own), *row.kept_sizes) if {*row.kept_sizes} - {-1} else None,
        row.kept_ids,
    )
