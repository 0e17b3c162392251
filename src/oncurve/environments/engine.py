"""A rollout engine whose completions are episodes, over any other engine.

    turn by turn:  the engine continues what is there -> the environment replies -> its reply is context -> ...

The prompts are divided into waves: while one waits for its environments, the next is decoded. Which rows are decoded
together depends on nothing else, so the same episodes give the same bits. A row's randomness is that of its prompt,
sample and turn.

Covered: any engine, on workers or not, by earlier weights or not; faults, hangs and deaths of environments.
Not covered: keys and values of a row are computed again in each turn.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ModelError
from oncurve.environments.dialogue import Dialogue, TemplateError
from oncurve.environments.host import Host, Pending
from oncurve.environments.tools import BY_COLUMN
from oncurve.models import Weights
from oncurve.processes.pool import Reply
from oncurve.randomness import episode_seed
from oncurve.rollout import OnGroup, RolloutEngine, Sampling, count_samples
from oncurve.types import Completion, Ending, Group, Prompt, Turn

_TURN = 1 << 40
"""Sample indices of the turns of one sample are so far apart."""
_LONGEST_TOKEN = 256
"""No token has more characters: a longer reply cannot fit, and is not tokenised."""


@dataclass
class _Row:
    """An episode as it grows."""

    number: int
    prompt: Prompt
    sample: int
    tools: Sequence[Any]
    turn: int = 0
    start: Prompt | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
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

    def write(self, completion: Completion) -> None:
        """Append what the policy has written."""
        self.turns.append(Turn("assistant", len(self.ids), len(self.ids) + len(completion.ids), completion.text))
        self.ids += completion.ids
        self.logprobs += completion.logprobs
        self.trained += [True] * len(completion.ids)
        self.version = completion.policy_version
        self.turn += 1

    def reward(self, value: float | None) -> None:
        """Give the policy's last turn its reward."""
        if value is not None:
            at = max(number for number, turn in enumerate(self.turns) if turn.role == "assistant")
            self.turns[at] = replace(self.turns[at], reward=float(value))


class EpisodeEngine(Closing):
    """Samples episodes with `inner`.

    host       plays the environments
    dialogue   makes tokens of what they say; None without a tokenizer
    sampling   of a training rollout; `max_new_tokens` is for the whole episode, context included
    keep       completions keep their environment, for reward functions that take it
    """

    def __init__(
        self,
        inner: RolloutEngine,
        host: Host,
        dialogue: Dialogue,
        sampling: Sampling,
        seed: int,
        keep: bool = False,
    ) -> None:
        self.inner, self.settings, self.host, self.dialogue = inner, host.settings, host, dialogue
        self.sampling, self.seed, self.keep = sampling, seed, keep
        self.rollouts = 0
        self.noted: defaultdict[str, float] = defaultdict(float)
        self._episodes = 0

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
        found, self.noted = dict(self.noted), defaultdict(float)
        count = found.pop("episodes", 0.0)
        for name in ("turns/mean", "turns/limit", "turns/rewarded"):
            if count:
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
        noted: defaultdict[str, float] = defaultdict(float)
        if sampling is None:  # an evaluation brings its own, and is not measured
            self.noted = noted
        sampling = sampling or self.sampling
        firsts = count_samples(prompts, sampling.group_size) if first_samples is None else first_samples
        self.rollouts += 1
        rollout = _Rollout(self, prompts, draw, sampling, firsts, on_group, noted)
        try:
            return rollout.run()
        finally:
            rollout.give_up()


class _Rollout:
    """One call of the engine."""

    def __init__(
        self,
        engine: EpisodeEngine,
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
        size = sampling.group_size
        self._rows = [
            [
                _Row(index * size + number, prompt, firsts[index] + number, self._tools_of(prompt))
                for number in range(size)
            ]
            for index, prompt in enumerate(prompts)
        ]
        self._groups: dict[int, Group] = {}

    def run(self) -> list[Group]:
        """Play all episodes."""
        for row in self._all():
            asked = [dict(each) for each in row.prompt.messages] if row.prompt.messages else row.prompt.text
            self._ask(row, {"act": "start", "row": dict(row.prompt.columns), "prompt": asked})
        count = min(self._engine.settings.waves, len(self._rows))
        waves = [range(number, len(self._rows), count) for number in range(count)]
        while len(self._groups) < len(self._rows):
            for wave in waves:
                self._turn(wave)
        return [self._groups[index] for index in range(len(self._rows))]

    def give_up(self) -> None:
        """Cancel what environments are still doing."""
        for row in self._all():
            if row.pending is not None:
                row.pending.cancel()

    def _all(self) -> list[_Row]:
        return [row for rows in self._rows for row in rows]

    def _tools_of(self, prompt: Prompt) -> Sequence[Any]:
        tools: Any = self._about["tools"]
        found: Sequence[Any] = tools
        if isinstance(tools, Mapping):
            found = tools.get(str(prompt.columns.get(BY_COLUMN, "")), ())
        return found

    def _turn(self, wave: Sequence[int]) -> None:
        """Take in what the environments of a wave have said, and decode its next turn."""
        while waiting := [row for index in wave for row in self._rows[index] if row.pending is not None]:
            for row in waiting:
                self._hear(row)
        for index in wave:
            if index not in self._groups and all(row.over for row in self._rows[index]):
                self._finish(index)
        first = [(row, self._rows[index][0].start) for index in wave for row in self._rows[index]]
        if all(row.turn == 0 and row.start == start for row, start in first):
            self._decode_groups([index for index in wave if index not in self._groups])
        else:
            self._decode_rows([row for index in wave for row in self._rows[index] if row.ended is None])

    def _decode_groups(self, indices: Sequence[int]) -> None:
        """Decode the first turn of whole groups, whose rows share a prompt."""
        rows = [self._rows[index] for index in indices]
        if rows:
            prompts = [group[0].start or group[0].prompt for group in rows]
            samples = [group[0].sample for group in rows]
            self._generate(rows, prompts, self._sampling, samples)

    def _decode_rows(self, rows: Sequence[_Row]) -> None:
        """Decode the next turn of single rows."""
        if rows:
            most = self._sampling.max_new_tokens
            prompts = [
                replace(row.start, ids=row.start.ids + tuple(row.ids), limit=most - len(row.ids))
                for row in rows
                if row.start is not None
            ]
            alone = self._sampling.model_copy(update={"group_size": 1})
            samples = [row.sample + row.turn * _TURN for row in rows]
            self._generate([[row] for row in rows], prompts, alone, samples)

    def _generate(
        self, rows: Sequence[Sequence[_Row]], prompts: Sequence[Prompt], sampling: Sampling, samples: Sequence[int]
    ) -> None:
        """Have the engine write a turn of each row; as soon as some are there, their environments are asked."""

        def take(number: int, group: Group) -> None:
            self._take(rows[number], group.completions)

        self._engine.inner.generate(prompts, self._draw, sampling, take, samples)

    def _take(self, rows: Sequence[_Row], completions: Sequence[Completion]) -> None:
        """Take in the turns that the policy has written, and ask the environments."""
        for row, completion in zip(rows, completions, strict=True):
            before = len(row.ids)
            row.write(completion)
            assert row.start is not None
            prompt_ids = (*row.start.ids, *row.ids[:before])
            calls = self._engine.dialogue.calls(prompt_ids, completion.ids, completion.text, row.tools)
            good = [call for call in calls if not isinstance(call, str)]
            message: dict[str, Any] = {"role": "assistant", "content": completion.text}
            if good:
                message["tool_calls"] = [
                    {"type": "function", "id": f"call{number:05d}", "function": call}
                    for number, call in enumerate(good)
                ]
            row.written.append(message)
            row.errors = [{"role": "tool", "name": "", "content": str({"error": e})} for e in calls if e not in good]
            if row.tools:
                self._note("tools/calls", float(len(calls)))
                self._note("tools/errors", float(len(row.errors)))
            if completion.ended == "length" or (self._about["answers"] and not calls):
                row.ended = completion.ended
                self._ask(row, {"act": "end"})
            elif calls and not good:
                self._answer(row, {"messages": (), "reward": None, "done": False}, completion.ended)
            else:
                self._ask(row, {"act": "reply", "text": completion.text, "calls": good, "ended": completion.ended})

    def _ask(self, row: _Row, item: dict[str, Any]) -> None:
        """Begin to ask a row's environment."""
        turn = 0 if item["act"] == "start" else row.turn
        sample = row.sample if turn else 0  # all samples of a group begin alike
        seed = episode_seed(self._engine.seed, self._draw, row.prompt.id, sample, turn)
        key = f"{row.number}"
        given = {**item, "key": key, "rollout": self._engine.rollouts, "seed": seed, "keep": self._engine.keep}
        row.log.append((given, None))
        row.pending = self._engine.host.begin(row.number, given)

    def _hear(self, row: _Row) -> None:
        """Wait for the reply that a row's environment is making, and act on it."""
        began, pending = time.perf_counter(), row.pending
        assert pending is not None
        reply = pending.result()
        if reply.fault is None and reply.value == {"lost": True}:
            reply = self._again(row)
        self._note("environment/wait_seconds", time.perf_counter() - began)
        row.pending, item = None, row.log[-1][0]
        row.log[-1] = (item, reply.value)
        if reply.fault is not None:
            row.fail(f"{reply.fault}: {reply.message.strip().rpartition(chr(10))[2][:300]}")
        elif item["act"] == "start":
            try:
                row.start = self._engine.dialogue.opened(row.prompt, reply.value["said"], row.tools)
            except ModelError as error:
                row.fail(str(error))
        elif item["act"] == "end":
            row.outcome, row.environment = reply.value["outcome"], reply.value["environment"]
        else:
            self._answer(row, reply.value, item["ended"])

    def _again(self, row: _Row) -> Reply:
        """Play an episode again whose worker has ended since, up to the item that is asked now.

        Returns the last reply, or a fault: the environment is not exact, or says something else this time.
        """
        if not self._engine.settings.exact:
            return Reply(None, "died", "its worker has ended, and environment.exact = false: it is not played again")
        for item, before in row.log[:-1]:
            reply = self._engine.host.begin(row.number, item).result()
            if reply.fault is not None:
                return reply
            if reply.value != before:
                return Reply(None, "died", "its worker has ended, and the episode does not go the same way again")
        return self._engine.host.begin(row.number, row.log[-1][0]).result()

    def _answer(self, row: _Row, value: Mapping[str, Any], ended: Ending) -> None:
        """Act on what an environment says to a turn."""
        row.reward(value["reward"])
        if value.get("errors"):
            self._note("tools/errors", float(value["errors"]))
        if value["done"]:
            row.ended, row.outcome, row.environment = "environment", value["outcome"], value["environment"]
            return
        said: list[dict[str, Any]] = [dict(message) for message in (*value["messages"], *row.errors)]
        ending = "turns" if row.turn >= self._engine.settings.max_turns else self._context(row, said, ended)
        row.ended = row.ended or ending
        if row.ended is not None and row.fault is None:
            self._ask(row, {"act": "end"})

    def _context(self, row: _Row, said: Sequence[dict[str, Any]], ended: Ending) -> Ending | None:
        """Append what an environment says; the ending, where that cannot be."""
        left = self._sampling.max_new_tokens - len(row.ids)
        if sum(len(str(message["content"])) for message in said) > left * _LONGEST_TOKEN:
            return "budget"
        assert row.start is not None
        history = [*row.start.messages, *row.written[:-1]] if row.start.messages else ()
        for message, call in zip(said, row.written[-1].get("tool_calls", ()), strict=False):
            message["tool_call_id"] = call["id"]
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

    def _finish(self, index: int) -> None:
        """Make the group of a prompt whose episodes are over."""
        rows = self._rows[index]
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


def _completion(row: _Row, shared: int) -> Completion:
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
    )
