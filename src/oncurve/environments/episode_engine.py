"""The rollout engine whose completions are episodes: an environment in a worker replies to each turn of the policy.

Covered: faults, hangs and deaths of environments.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from oncurve.base.errors import ModelError
from oncurve.environments.dialogue import kept
from oncurve.environments.host import asked
from oncurve.environments.turns import Row, TurnsEngine, unwritten
from oncurve.processes import headline, place_of
from oncurve.processes.pool import WorkerReply
from oncurve.randomness import episode_seed
from oncurve.types import Completion, Ending

_PATIENCE_SECONDS = 1.0  # until it looks whether the workers can still reply


class EpisodeEngine(TurnsEngine):
    """Samples episodes with `inner`: an environment in a worker replies to each turn."""

    def _begin(self) -> None:
        """Have all episodes begin."""
        self._heard: SimpleQueue[None] = SimpleQueue()
        size, most = self._sampling.group_size, self._sampling.max_new_tokens
        for index, prompt in enumerate(self._prompts):
            for number in range(size):
                tools, sample = self.host.tools_of(prompt.columns), self._firsts[index] + number
                row = Row(index * size + number, prompt, prompt, sample, tools, most, most)
                self._rows[index].append(row)
                self._ask(row, {"act": "start", "row": dict(prompt.columns), "prompt": asked(prompt)})

    def _hear(self, waves: Sequence[range]) -> range:
        """Take in what environments have said, until all of one wave have replied; return that wave."""
        while True:
            for row in (row for rows in self._rows for row in rows):
                while row.pending is not None and row.pending.ready:
                    self._take_reply(row)
            for wave in waves:
                if all(row.pending is None for index in wave for row in self._rows[index]):
                    return wave
            began = time.perf_counter()
            with suppress(Empty):
                self._heard.get(timeout=_PATIENCE_SECONDS)
            while not self._heard.empty():
                self._heard.get()
            self._noted["environment/wait_seconds"] += time.perf_counter() - began

    def _over(self, index: int) -> bool:
        """Return whether all rows of a group are over."""
        return all(row.ended is not None and row.pending is None for row in self._rows[index])

    def _give_up(self) -> None:
        """Cancel what environments are still doing."""
        for row in (row for rows in self._rows for row in rows):
            if row.pending is not None:
                row.pending.close()

    def _answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Ask the environment, or end the episode."""
        row.errors = [{"role": "tool", "name": "unknown", "content": str({"error": e})} for e in calls if e not in good]
        last = row.turn >= self.settings.max_turns  # whose calls are not made
        if completion.ended == "length" or (self.host.about()["answers"] and (last or not calls)):
            row.ended = "turns" if calls and completion.ended != "length" else completion.ended
            self._ask(row, {"act": "end"})
        elif calls and not good:
            self._act(row, {"messages": (), "reward": None, "done": False}, completion.ended)
        else:
            self._ask(row, {"act": "reply", "text": completion.text, "calls": good, "ended": completion.ended})

    def _ask(self, row: Row, item: dict[str, Any]) -> None:
        """Begin to ask a row's environment."""
        sample = row.sample if row.turn else 0  # all samples of a group begin alike
        seed = episode_seed(self.seed, self._draw, row.prompt.id, sample, row.turn)
        given = {**item, "key": f"{row.number}", "seed": seed, "keep": self.keep}
        row.log.append((given, None))
        row.pending = self.host.begin(row.number, given, self._heard)

    def _take_reply(self, row: Row) -> None:
        """Act on the reply that a row's environment has made."""
        assert row.pending is not None
        reply = row.pending.replies()[0]
        while reply.value == {"lost": True}:
            reply = self._again(row)
        row.pending, item = None, row.log[-1][0]
        row.log[-1] = (item, reply.value)
        if reply.fault is not None:
            row.fail(f"{reply.fault}: {headline(reply.message)[:300]}{place_of(reply.message)}")
            return
        try:
            if item["act"] == "start":
                row.start = self.dialogue.opened(row.prompt, reply.value["said"], row.tools)
                if len(row.start.ids) + row.room > self._longest:
                    most = f"and with rollout.max_new_tokens = {row.room} the model takes {self._longest}"
                    row.fail(f"its start has {len(row.start.ids)} tokens, {most}")
            elif item["act"] == "end":
                row.outcome, row.environment = reply.value["outcome"], reply.value["environment"]
            else:
                self._act(row, reply.value, item["ended"])
        except ModelError as error:
            row.fail(str(error))

    def _again(self, row: Row) -> WorkerReply:
        """Play an episode again whose worker has ended since, up to the item that is asked now.

        Returns the last reply, or a fault: the environment is not exact, or says something else this time.
        """
        if not self.settings.exact:
            return WorkerReply(None, "died", "its worker ended, and environment.exact = false: it is not played again")
        for item, before in row.log[:-1]:
            reply = self.host.begin(row.number, item).replies()[0]
            if reply.fault is not None or reply.value == {"lost": True}:
                return reply
            if reply.value != before:
                return WorkerReply(None, "died", "its worker has ended, and the episode does not go the same way again")
        return self.host.begin(row.number, row.log[-1][0]).replies()[0]

    def _act(self, row: Row, value: Mapping[str, Any], ended: Ending) -> None:
        """Act on what an environment says to a turn. Raises ModelError: it is no message."""
        row.reward(value["reward"])
        if value.get("errors"):
            self._noted["tools/errors"] += value["errors"]
        if value["done"]:
            row.ended, row.outcome, row.environment = "environment", value["outcome"], value["environment"]
            return
        said = [kept(message) for message in (*value["messages"], *row.errors)]
        for message, call in zip(said, row.written[-1].get("tool_calls", ()), strict=False):
            message["tool_call_id"] = call["id"]
        row.ended = "turns" if row.turn >= self.settings.max_turns else self._context(row, said, ended)
        if row.ended == "budget" and said:  # so that it can be looked at
            row.add(said[0]["role"], unwritten("\n".join(str(each["content"]) for each in said)[:2000], ()))
        if row.ended is not None:
            self._ask(row, {"act": "end"})
