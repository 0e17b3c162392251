"""Episodes that are programs of the user's, which call the policy as they would call OpenAI.

    a program in a worker -> its call waits -> the policy writes the answer -> the program goes on -> ... -> its reward

A wave is decoded when each of its programs has a call that waits, or has ended. So which rows are decoded together
depends on the programs alone, and programs that do the same again get the same bits.

A call whose messages begin with those of an earlier call and its answer goes on with that row: what was sampled is not
tokenised again. Any other call begins a row of its own, in the same group and with the same reward.

Covered: calls at the same time; calls that a client repeats; programs that raise, exit, hang, die or call for ever. A
program whose worker was killed runs again, and its calls get the answers that they got.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

from oncurve.base.errors import ModelError
from oncurve.environments.endpoint import BEGUN, Asked, Call, Line, answered, error, told_calls
from oncurve.environments.engine import LONGEST_TOKEN, Rollout, Row
from oncurve.environments.host import Pending
from oncurve.environments.settings import Endpoint
from oncurve.randomness import episode_seed
from oncurve.types import Completion, Ending, Prompt

log = logging.getLogger("oncurve.environments")

_PATIENCE_SECONDS = 10.0  # for a worker that starts
_warned: set[str] = set()


@dataclass(eq=False)
class _Made:
    """A call that was taken in, its answer once it is there, and the requests that wait for it."""

    asked: Asked
    calls: list[Call]
    row: Row
    answer: Mapping[str, Any] | None = None


@dataclass(eq=False)
class _Program:
    """One episode.

    since       when it began to do what is waited for; None: its worker starts
    made        its calls; `unclaimed` are those that a program that runs again has not made again yet
    calls       that have come and are not taken in
    refused     the ending of a program whose last call was refused, of the row `last`
    """

    number: int
    index: int
    prompt: Prompt
    sample: int
    line: Line | None = None
    pending: Pending | None = None
    slot: int = -1
    runs: int = 0
    since: float | None = None
    rows: list[Row] = field(default_factory=list)
    made: list[_Made] = field(default_factory=list)
    unclaimed: list[_Made] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    refused: Ending | None = None
    last: Row | None = None
    posted: float | None = None

    @property
    def live(self) -> bool:
        """Return whether it runs."""
        return self.pending is not None

    @property
    def over(self) -> bool:
        """Return whether it has run."""
        return self.line is not None and self.pending is None

    @property
    def waits(self) -> list[_Made]:
        """Return the calls without an answer."""
        return [made for made in self.made if made.answer is None]


class Programs(Rollout):
    """The user's programs call the policy. `longest`: the most tokens of a row, prompt and completion together."""

    def __init__(self, *given: Any, longest: int | None = None) -> None:
        super().__init__(*given)
        settings = self._engine.settings
        assert isinstance(settings, Endpoint)
        self._settings, self._longest = settings, longest
        self._most_waves = min(settings.waves, settings.processes)
        size = self._sampling.group_size
        self._programs = [
            _Program(index * size + number, index, prompt, self._firsts[index] + number)
            for index, prompt in enumerate(self._prompts)
            for number in range(size)
        ]
        self._engine.host.ready()

    def hear(self, wave: range) -> None:
        """Let programs run until each has a call that waits, or has ended; others begin in their place."""
        began = time.perf_counter()
        while busy := self._busy(wave):
            for program in busy:
                self._listen(program)
            if any(program.calls for program in busy):
                time.sleep(self._settings.together_seconds)
            for program in self._of(wave):
                self._take_calls(program)
        self._note("environment/wait_seconds", time.perf_counter() - began)

    def over(self, index: int) -> bool:
        """Return whether all programs of a group have ended."""
        return all(program.over for program in self._programs if program.index == index)

    def give_up(self) -> None:
        """End the programs that run."""
        for program in self._programs:
            if program.live:
                self._end(program)

    def _of(self, wave: range) -> list[_Program]:
        return [program for program in self._programs if program.index in wave]

    def _busy(self, wave: range) -> list[_Program]:
        """Begin programs where workers of this wave are free, and return those that neither wait nor have ended."""
        programs = self._of(wave)
        taken = {program.slot for program in programs if program.live}
        free = [slot for slot in range(wave.start, self._settings.processes, wave.step) if slot not in taken]
        waiting = [program for program in programs if program.line is None]
        for program, slot in zip(waiting, free, strict=False):
            self._begin(program, slot)
        return [program for program in programs if program.live and not program.waits]

    def _begin(self, program: _Program, slot: int) -> None:
        host, prompt = self._engine.host, program.prompt
        program.line, program.slot = host.endpoint.open(), slot
        seed = episode_seed(self._engine.seed, self._draw, prompt.id, 0, 0)  # all samples of a group begin alike
        asked = [dict(each) for each in prompt.messages] if prompt.messages else prompt.text
        program.pending = host.run(slot, program.line, prompt.columns, asked, seed)

    def _listen(self, program: _Program) -> None:
        """Wait for a program's next call, or for its end."""
        assert program.line is not None
        limit = self._settings.timeout_seconds
        while program.live and not program.calls:
            left = _PATIENCE_SECONDS if program.since is None else program.since + limit - time.monotonic()
            try:
                self._happened(program, program.line.events.get(timeout=max(0.0, left)))
            except Empty:
                if program.since is None:
                    self._engine.host.ready()  # raises, where workers cannot start
                else:
                    self._fail(program, f"timeout: no call within {limit:g} seconds (timeout_seconds)")

    def _happened(self, program: _Program, event: Any) -> None:
        if event is None:
            self._finished(program)
        elif isinstance(event, Call):
            program.calls.append(event)
        elif event == BEGUN:
            program.runs, program.since, program.posted = program.runs + 1, time.monotonic(), None
            if program.runs > 1 and not self._settings.exact:
                self._fail(program, "died: its worker has ended, and environment.exact = false: it is not run again")
            program.calls, program.unclaimed = [], list(program.made)
        else:
            program.posted = event

    def _take_calls(self, program: _Program) -> None:
        """Take in the calls of a program that have come, in an order that depends on what they say."""
        while program.live and program.line is not None and not program.line.events.empty():
            self._happened(program, program.line.events.get())
        calls, program.calls = sorted(program.calls, key=lambda call: repr(call.asked)), []
        for call in calls:
            if not program.live:
                call.answer(400, error("the episode is over", "episode_over"))
            elif (known := self._known(program, call)) is not None:
                known.calls.append(call)
                if known.answer is not None:
                    self._send(program, known)
            elif program.unclaimed:
                self._fail(program, "died: its worker has ended, and the program does not go the same way again")
            elif len(program.made) >= self._settings.max_turns:
                most = f"an episode has at most {self._settings.max_turns} calls (environment.max_turns)"
                self._refuse(program, call, "turns", most)
            else:
                self._place(program, call)

    def _known(self, program: _Program, call: Call) -> _Made | None:
        """Return the same call made before, where a program runs again, or a client repeats it; None: it is new."""
        before = program.unclaimed or (program.made if call.again else [])
        found = next((made for made in before if made.asked == call.asked), None)
        program.unclaimed = [made for made in program.unclaimed if made is not found]
        return found

    def _place(self, program: _Program, call: Call) -> None:
        """Give a call its row: one that it goes on with, or a new one."""
        self._warn(call.asked)
        row = self._continued(program, call.asked)
        if row is not None:
            before, asked = row.ended, call.asked.messages
            assert row.start is not None
            assert before is not None
            said = [dict(each) for each in asked[len(row.start.messages or ()) + len(row.written) :]]
            ending = self._context(row, said, before)
            if ending == "budget":
                program.last = row
                self._refuse(program, call, ending, self._too_long(row.room))
                return
            row = row if ending is None else None  # the template does not go on: the call begins a row
        if row is None:
            row = self._new(program, call)
        if row is not None:
            row.ended, row.stop, row.place = None, call.asked.stop, len(program.made)
            row.most = min(call.asked.most or row.room, row.room)
            program.made.append(_Made(call.asked, [call], row))
            program.refused, program.last = None, row

    def _continued(self, program: _Program, asked: Asked) -> Row | None:
        """Return the longest row that a call goes on with."""
        found, longest = None, 0
        for row in program.rows:
            assert row.start is not None
            history = [*(row.start.messages or ()), *row.written]
            if row.ended is None or row.tools != asked.tools or not longest < len(history) < len(asked.messages):
                continue
            if all(map(_same, history, asked.messages)):
                found, longest = row, len(history)
        return found

    def _new(self, program: _Program, call: Call) -> Row | None:
        """Begin a row with the messages of a call; None: it is refused."""
        asked, prompt, room = call.asked, program.prompt, self._sampling.max_new_tokens
        most = self._settings.max_prompt_tokens
        ids: tuple[int, ...] = ()
        fits = sum(len(message["content"]) for message in asked.messages) <= most * LONGEST_TOKEN
        try:
            ids = self._engine.dialogue.asked(asked.messages, asked.tools) if fits else ()
        except ModelError as wrong:
            self._refuse(program, call, None, str(wrong))
            return None
        room = room if self._longest is None else min(room, self._longest - len(ids))
        if not ids or len(ids) > most or room < 1:
            self._refuse(program, call, "budget", self._too_long(min(most, self._longest or most)))
            return None
        limit = min(call.asked.most or room, room)
        row = Row(program.number, prompt, program.sample, asked.tools, room, limit)
        row.start = replace(prompt, ids=ids, messages=asked.messages, row_ids=prompt.ids, limit=limit)
        program.rows.append(row)
        self._rows[program.index].append(row)
        return row

    def _too_long(self, most: int) -> str:
        return f"the messages are too long: {most} tokens are the limit (maximum context length)"

    def _refuse(self, program: _Program, call: Call, ending: Ending | None, sentence: str) -> None:
        program.refused = ending or program.refused
        codes = {"budget": "context_length_exceeded", "turns": "max_turns"}
        call.answer(400, error(sentence, codes.get(str(ending), "invalid_request")))

    def _warn(self, asked: Asked) -> None:
        """Say once per argument that the run's own value is used."""
        for name, value in asked.ignored.items():
            if name not in _warned and (name, value) != ("temperature", self._sampling.temperature):
                _warned.add(name)
                log.warning(
                    "environment: a program calls with %s = %.60r, which has no effect: the run decides how the policy "
                    "samples",
                    name,
                    value,
                )

    def answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Answer the call that waits for this turn."""
        program = self._programs[row.number]
        row.ended = completion.ended
        written, prompt = row.written[-1], row.start
        assert prompt is not None
        told: dict[str, Any] = {"role": "assistant", "content": _shown(written)}
        if good:
            told = {**told, "content": told["content"] or None, "tool_calls": told_calls(written["tool_calls"])}
        (made,) = (made for made in program.waits if made.row is row)
        before = len(prompt.ids) + len(row.ids) - len(completion.ids)
        made.answer = answered(told, completion.ended, before, len(completion.ids))
        self._send(program, made)

    def _send(self, program: _Program, made: _Made) -> None:
        assert made.answer is not None
        for call in made.calls:
            call.answer(200, made.answer)
        made.calls, program.since = [], time.monotonic()

    def _finished(self, program: _Program) -> None:
        """Take the reward of a program that has ended, or its fault."""
        assert program.pending is not None
        reply = program.pending.result()
        if reply.fault is not None and not (program.refused and reply.fault in ("exception", "exit")):
            self._fail(program, f"{reply.fault}: {reply.message.strip().rpartition(chr(10))[2][:300]}")
            return
        self._end(program)
        outcome = None if reply.fault is not None else reply.value["outcome"]
        for row in program.rows:
            row.ended = row.ended or "environment"
            row.outcome = program.posted if outcome is None else outcome
        if program.refused and program.last in program.rows:
            program.last.ended = program.refused
        if not program.rows:
            self._fail(program, "none: the program has ended and got no answer to a call")

    def _fail(self, program: _Program, why: str) -> None:
        """Leave an episode out of training."""
        self._end(program)
        if not program.rows:
            program.rows = [Row(program.number, program.prompt, program.sample, (), 1, 1)]
            self._rows[program.index] += program.rows
        for row in program.rows:
            row.fail(why)

    def _end(self, program: _Program) -> None:
        """End a program that runs, with the rows that have no turn."""
        if program.pending is not None and program.line is not None:
            program.pending.cancel()
            program.pending = None
            for call in [call for made in program.waits for call in made.calls] + program.calls:
                call.answer(400, error("the episode is over", "episode_over"))
            self._engine.host.endpoint.shut(program.line)
        empty = [row for row in program.rows if not row.turn]
        program.rows = [row for row in program.rows if row.turn]
        self._rows[program.index] = [row for row in self._rows[program.index] if row not in empty]


def _shown(message: Mapping[str, Any]) -> str:
    """Return the text of a turn of the policy without its tool calls."""
    text = str(message["content"])
    if not message.get("tool_calls"):
        return text
    before, mark, _ = text.partition("<tool_call>")
    return before.strip() if mark else ""


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether a message of a call is this one of the history. Clients may leave out text beside tool calls."""
    if ours == theirs:
        return True
    calls = ours.get("tool_calls")
    if not ours["role"] == theirs["role"] == "assistant" or calls != theirs.get("tool_calls"):
        return False
    return theirs["content"].strip() in ({_shown(ours).strip(), ""} if calls else {_shown(ours).strip()})
