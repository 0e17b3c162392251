"""Episodes that are programs of the user's, which call the policy as they would call OpenAI.

    a program in a worker -> its call waits -> the policy writes the answer -> the program goes on -> ... -> its reward

A wave is decoded when each of its programs has a call that waits, or has ended. So which rows are decoded together
depends on the programs alone, and programs that do the same again get the same bits.

A call whose messages begin with those of an earlier call and its answer goes on with that row: what was sampled is not
tokenised again. Any other call begins a row of its own, in the same group and with the same reward.

Covered: calls at the same time; calls that a client repeats; programs that raise, exit, hang, die or call for ever. A
program whose worker was killed runs again, and its calls get the answers that they got.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

from oncurve.base.errors import ModelError
from oncurve.environments.endpoint import OVER, ChatCall, EndpointServer, EpisodeLine, RefusedError, answered
from oncurve.environments.host import Pending, asked
from oncurve.environments.settings import Endpoint
from oncurve.environments.turns import LONGEST_TOKEN, Row, TurnsEngine
from oncurve.processes import headline, place_of
from oncurve.randomness import episode_seed
from oncurve.types import Completion, Ending

log = logging.getLogger("oncurve.environments")

_ENDINGS: Mapping[str, Ending] = {"context_length_exceeded": "budget", "max_turns": "turns"}


@dataclass(eq=False)
class _Program:
    """The program of an episode.

    blank       stands for it in its group, number `index`, where it has no row.
    slot        the worker that it was given to; None: it has not begun.
    since       when it began to do what is waited for.
    process     in which it runs.
    made        its calls; `unclaimed` are those that a program that runs again has not made again yet.
    calls       that have come and are not taken in.
    refused     the ending of a program whose last call was refused, of the row `last`.
    refusals    so many calls were refused
    """

    blank: Row
    index: int
    line: EpisodeLine
    slot: int | None = None
    pending: Pending | None = None
    since: float = 0.0
    process: str = ""
    made: list[ChatCall] = field(default_factory=list)
    unclaimed: list[ChatCall] = field(default_factory=list)
    calls: list[ChatCall] = field(default_factory=list)
    refused: Ending | None = None
    last: Row | None = None
    refusals: int = 0
    posted: float | None = None

    @property
    def waits(self) -> list[ChatCall]:
        """Return the calls without an answer."""
        return [made for made in self.made if made.answer is None]


class Programs(TurnsEngine):
    """Samples what the user's programs ask."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        assert isinstance(self.settings, Endpoint)
        self._endpoint, self._warned = self.settings, set[str]()
        self._most_waves = min(self.settings.waves, self.settings.processes)
        self._server: EndpointServer | None = None

    def close(self) -> None:
        """End the server, the programs and `inner`."""
        super().close()
        if self._server is not None:
            self._server.close()
        self._server = None

    def _begin(self) -> None:
        """Wait for the workers; the programs begin where one is free."""
        self._programs: list[_Program] = []
        size, self._server = self._sampling.group_size, self._server or EndpointServer()
        self._programs += [
            _Program(Row(index * size + number, prompt, prompt, first + number, (), 1, 1), index, self._server.open())
            for index, (prompt, first) in enumerate(zip(self._prompts, self._firsts, strict=True))
            for number in range(size)
        ]
        self.host.ready()

    def _hear(self, waves: Sequence[range]) -> range:
        """Let programs of the first wave run until each has a call that waits, or has ended; others begin in their
        place.
        """
        wave = waves[0]
        began = time.perf_counter()
        programs = [program for program in self._programs if program.index in wave]
        while busy := self._busy(wave, programs):
            for program in busy:
                self._listen(program)
            time.sleep(self._endpoint.together_seconds * any(program.calls for program in busy))
            for program in programs:
                self._take_calls(program)
        self._noted["environment/wait_seconds"] += time.perf_counter() - began
        return wave

    def _over(self, index: int) -> bool:
        """Return whether all programs of a group have ended."""
        return all(each.slot is not None and each.pending is None for each in self._programs if each.index == index)

    def _give_up(self) -> None:
        """End the programs that run."""
        for program in self._programs:
            self._end(program)

    def _busy(self, wave: range, programs: Sequence[_Program]) -> list[_Program]:
        """Begin programs where workers of this wave are free, and return those that neither wait nor have ended."""
        taken = {program.slot for program in programs if program.pending is not None}
        free = [slot for slot in range(wave.start, self._endpoint.processes, wave.step) if slot not in taken]
        for program, slot in zip([program for program in programs if program.slot is None], free, strict=False):
            program.slot, prompt = slot, program.blank.prompt
            program.since = time.monotonic() + self._endpoint.start_timeout_seconds  # until it says that it begins
            seed = episode_seed(self.seed, self._draw, prompt.id, 0, 0)  # all samples of a group begin alike
            item = {
                "address": program.line.server.address,
                "key": program.line.key,
                "row": dict(prompt.columns),
                "prompt": asked(prompt),
                "seed": seed,
            }
            program.pending = self.host.begin(slot, item, program.line.events)
        return [program for program in programs if program.pending is not None and not program.waits]

    def _listen(self, program: _Program) -> None:
        """Wait for a program's next call, or for its end."""
        limit = self._endpoint.timeout_seconds
        while program.pending is not None and not program.calls:
            left = max(0.0, program.since + limit - time.monotonic())
            try:
                self._happened(program, program.line.events.get(timeout=left))
            except Empty:
                self._fail(program, f"timeout: no call within {limit:g} seconds (timeout_seconds)")

    def _happened(self, program: _Program, event: Any) -> None:
        if event is None:
            self._finished(program)
            return
        process, said = event
        if program.process not in ("", process):  # its worker was killed: it runs again
            if not self._endpoint.exact:
                self._fail(program, "died: its worker has ended, and environment.exact = false: it is not run again")
            program.calls, program.unclaimed, program.posted = [], list(program.made), None
        program.process = process
        if said is None:
            program.since = time.monotonic()
        elif isinstance(said, ChatCall):
            program.calls.append(said)
        else:
            program.posted = said

    def _take_calls(self, program: _Program) -> None:
        """Take in the calls of a program that have come, in an order that depends on what they say."""
        while program.pending is not None and not program.line.events.empty():
            self._happened(program, program.line.events.get())
        calls, program.calls = sorted(program.calls, key=repr), []
        for call in calls:
            try:
                self._take_call(program, call)
            except (ModelError, RefusedError) as why:
                self._refuse(program, call, *why.args)

    def _take_call(self, program: _Program, call: ChatCall) -> None:
        """Find the row that a call goes on with, or the answer that it got. Raises RefusedError, ModelError."""
        known = next((made for made in program.unclaimed if made == call), None)
        if call.again and known is None:  # a client repeats a call that it has given up
            known = next((made for made in reversed(program.made) if made == call), None)
        if program.pending is None:
            call.refuse(OVER)
        elif known is not None:
            program.unclaimed = [made for made in program.unclaimed if made is not known]
            known.waiting += call.waiting
            self._send(program, known)
        elif program.unclaimed:
            self._fail(program, "died: its worker has ended, and the program does not go the same way again")
        elif len(program.made) >= self._endpoint.max_turns:
            most = f"an episode has at most {self._endpoint.max_turns} calls (environment.max_turns)"
            raise RefusedError(most, "max_turns")
        else:
            call.row = program.last = row = self._continued(program, call) or self._new(program, call)
            row.ended, row.stop, row.place = None, call.stop, len(program.made)
            row.most = min(call.most or row.room, row.room)
            program.made.append(call)
            program.refused = None
            self._warn(call)

    def _continued(self, program: _Program, asked: ChatCall) -> Row | None:
        """Return the longest row that a call goes on with, after what it adds."""
        found, before = None, 0
        for row in self._rows_of(program):
            history = [*(row.start.messages or ()), *row.written]
            fits = row.ended is not None and row.tools == asked.tools and before < len(history) < len(asked.messages)
            if fits and all(map(_same, history, asked.messages)):
                found, before = row, len(history)
        if found is None or found.ended is None:
            return None
        ending = self._context(found, [dict(each) for each in asked.messages[before:]], found.ended)
        return found if ending is None else None  # it has no room, or the template does not go on

    def _new(self, program: _Program, call: ChatCall) -> Row:
        """Begin a row with the messages of a call. Raises RefusedError, ModelError."""
        prompt, most, ids = program.blank.prompt, self._endpoint.max_prompt_tokens, tuple[int, ...]()
        if sum(len(message["content"]) for message in call.messages) <= most * LONGEST_TOKEN:
            ids = self.dialogue.asked(call.messages, call.tools)
        room = min(self._sampling.max_new_tokens, self._longest - len(ids))
        if not ids or len(ids) > most or room < 1:
            count = len(ids) or f"more than {most}"
            fit = f"the messages have {count} tokens, and at most {min(most, self._longest)} fit"
            raise RefusedError(fit, "context_length_exceeded")
        if any(row.start.ids[0] != ids[0] for row in self._rows[program.index] if row.start is not row.prompt):
            raise RefusedError("the chats of a group must begin with the same token")
        start = replace(prompt, ids=ids, messages=call.messages, row_ids=prompt.ids)
        row = Row(program.blank.number, prompt, start, program.blank.sample, call.tools, room, room)
        self._rows[program.index].append(row)
        return row

    def _refuse(self, program: _Program, call: ChatCall, sentence: str, code: str = "invalid_request") -> None:
        call.refuse(f"the call is refused: {sentence}", code)
        program.line.refused.append(sentence)
        program.refused, program.since = _ENDINGS.get(code) or program.refused, time.monotonic()
        program.refusals += 1
        if program.refusals > self._endpoint.max_turns:
            self._fail(program, f"calls: it goes on to call after {program.refusals} refusals")

    def _warn(self, asked: ChatCall) -> None:
        """Say once per argument that the run's own value is used."""
        for name, value in asked.ignored.items():
            if name not in self._warned and (name, value) != ("temperature", self._sampling.temperature):
                self._warned.add(name)
                log.warning("environment: %s = %.60r of a call has no effect: the run decides it", name, value)

    def _answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Answer the call that waits for this turn."""
        program = self._programs[row.number]
        (made,) = (made for made in program.waits if made.row is row)
        row.ended, written, count = completion.ended, row.written[-1], len(completion.ids)
        before = len(row.start.ids) + len(row.ids) - count
        made.answer = answered(written["content"], written.get("tool_calls"), completion.ended, before, count)
        self._send(program, made)

    def _send(self, program: _Program, made: ChatCall) -> None:
        """Answer those that wait for a call, if the answer is there."""
        if made.answer is not None:
            made.settle(200, made.answer)
            program.since = time.monotonic()

    def _finished(self, program: _Program) -> None:
        """Take the reward of a program that has ended, or its fault."""
        assert program.pending is not None
        reply = program.pending.replies()[0]
        if reply.fault is not None and not (program.refused and reply.fault in ("exception", "exit")):
            self._fail(program, f"{reply.fault}: {headline(reply.message)[:300]}{place_of(reply.message)}")
            return
        self._end(program)
        outcome = None if reply.fault is not None else reply.value["outcome"]
        for row in self._rows_of(program):
            refused = program.refused if row is program.last else None
            row.ended = refused or row.ended or "environment"
            row.outcome = program.posted if outcome is None else outcome
        if not self._rows_of(program):
            self._fail(program, "none: the program has ended and got no answer to a call")

    def _fail(self, program: _Program, why: str) -> None:
        """Leave an episode out of training."""
        self._end(program)
        if not self._rows_of(program):
            self._rows[program.index].append(program.blank)
        why += "".join(f"; its last refused call: {each}" for each in program.line.refused[-1:])
        for row in self._rows_of(program):
            row.fail(why)

    def _end(self, program: _Program) -> None:
        """End a program, if it runs, with the rows that have no turn."""
        if program.pending is not None:
            program.pending.close()
        program.pending = None
        for call in [*program.waits, *program.calls]:
            call.refuse(OVER)
        program.line.close()
        rows = self._rows[program.index]
        rows[:] = [row for row in rows if row.turn or row.number != program.blank.number]

    def _rows_of(self, program: _Program) -> list[Row]:
        return [row for row in self._rows[program.index] if row.number == program.blank.number]


def _same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether a message of a call is this one of the history. Clients may leave out text next to tool calls."""
    calls = ours.get("tool_calls")
    if not ours["role"] == theirs["role"] == "assistant" or calls != theirs.get("tool_calls"):
        return ours == theirs
    return theirs["content"].strip() == ours["content"].strip() or bool(calls and not theirs["content"].strip())
