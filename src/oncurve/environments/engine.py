"""A rollout engine whose completions are episodes, over any other engine.

    turn by turn:  the engine continues what is there -> the environment replies -> its reply is context -> ...

The prompts are divided into waves. A wave is decoded when all its environments have replied, whichever is the first;
the others wait meanwhile. Which rows are decoded together depends on nothing else, so the same episodes give the same
bits. A row's randomness is that of its prompt, sample and turn.

Covered: any engine, on workers or not, by earlier weights or not; faults, hangs and deaths of environments.
Not covered: keys and values of a row are computed again in each turn.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ModelError
from oncurve.environments.dialogue import Dialogue, kept
from oncurve.environments.host import Host
from oncurve.environments.rows import Rollout, Row
from oncurve.models import Weights
from oncurve.processes.pool import Reply
from oncurve.randomness import episode_seed
from oncurve.rollout import OnGroup, RolloutEngine, Sampling, count_samples
from oncurve.types import Completion, Ending, Group, Prompt

_PATIENCE_SECONDS = 1.0  # until it looks whether the workers can still reply


class EpisodeEngine(Closing):
    """Samples episodes with `inner`.

    host       plays the environments
    dialogue   makes tokens of what they say; None without a tokenizer
    sampling   of a training rollout; `max_new_tokens` is for the whole episode, context included
    keep       completions keep their environment, for reward functions that take it
    rollout    the replies between the turns of the policy: `Replies`, or `Programs`
    """

    def __init__(
        self,
        inner: RolloutEngine,
        host: Host,
        dialogue: Dialogue,
        sampling: Sampling,
        seed: int,
        keep: bool = False,
        rollout: Callable[..., Rollout] | None = None,
    ) -> None:
        self._rollout = rollout or Replies
        self.inner, self.settings, self.host, self.dialogue = inner, host.settings, host, dialogue
        self.sampling, self.seed, self.keep = sampling, seed, keep
        self.noted: defaultdict[str, float] = defaultdict(float)
        self.warned: set[str] = set()

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
        rollout = self._rollout(self, prompts, draw, sampling, firsts, on_group, noted)
        try:
            return rollout.run()
        finally:
            rollout.give_up()


class Replies(Rollout):
    """An environment in a worker replies to each turn."""

    def begin(self) -> None:
        """Have all episodes begin."""
        self._heard: SimpleQueue[None] = SimpleQueue()
        size, most = self._sampling.group_size, self._sampling.max_new_tokens
        for index, prompt in enumerate(self._prompts):
            asked = [dict(each) for each in prompt.messages] if prompt.messages else prompt.text
            for number in range(size):
                sample = self._firsts[index] + number
                row = Row(index * size + number, prompt, sample, self._engine.host.tools_of(prompt.columns), most, most)
                self._rows[index].append(row)
                self._ask(row, {"act": "start", "row": dict(prompt.columns), "prompt": asked})

    def hear(self, waves: Sequence[range]) -> range:
        """Take in what environments have said, until all of one wave have replied; return that wave."""
        while True:
            for row in self._all():
                while row.pending is not None and row.pending.ready:
                    self._hear(row)
            for wave in waves:
                if all(row.pending is None for index in wave for row in self._rows[index]):
                    return wave
            began = time.perf_counter()
            with suppress(Empty):
                self._heard.get(timeout=_PATIENCE_SECONDS)
            while not self._heard.empty():
                self._heard.get()
            self._note("environment/wait_seconds", time.perf_counter() - began)

    def over(self, index: int) -> bool:
        """Return whether all rows of a group are over."""
        return all(row.over for row in self._rows[index])

    def give_up(self) -> None:
        """Cancel what environments are still doing."""
        for row in self._all():
            if row.pending is not None:
                row.pending.close()

    def answer(self, row: Row, completion: Completion, calls: Sequence[Any], good: Sequence[Any]) -> None:
        """Ask the environment, or end the episode."""
        row.errors = [{"role": "tool", "name": "unknown", "content": str({"error": e})} for e in calls if e not in good]
        last = row.turn >= self._engine.settings.max_turns  # whose calls are not made
        if completion.ended == "length" or (self._about["answers"] and (last or not calls)):
            row.ended = "turns" if calls and completion.ended != "length" else completion.ended
            self._ask(row, {"act": "end"})
        elif calls and not good:
            self._answer(row, {"messages": (), "reward": None, "done": False}, completion.ended)
        else:
            self._ask(row, {"act": "reply", "text": completion.text, "calls": good, "ended": completion.ended})

    def _ask(self, row: Row, item: dict[str, Any]) -> None:
        """Begin to ask a row's environment."""
        turn = 0 if item["act"] == "start" else row.turn
        sample = row.sample if turn else 0  # all samples of a group begin alike
        seed = episode_seed(self._engine.seed, self._draw, row.prompt.id, sample, turn)
        key = f"{row.number}"
        given = {**item, "key": key, "seed": seed, "keep": self._engine.keep}
        row.log.append((given, None))
        row.pending = self._engine.host.begin(row.number, given, self._heard)

    def _hear(self, row: Row) -> None:
        """Act on the reply that a row's environment has made."""
        assert row.pending is not None
        reply = row.pending.replies()[0]
        while reply.value == {"lost": True}:
            reply = self._again(row)
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

    def _again(self, row: Row) -> Reply:
        """Play an episode again whose worker has ended since, up to the item that is asked now.

        Returns the last reply, or a fault: the environment is not exact, or says something else this time.
        """
        if not self._engine.settings.exact:
            return Reply(None, "died", "its worker has ended, and environment.exact = false: it is not played again")
        for item, before in row.log[:-1]:
            reply: Reply = self._engine.host.begin(row.number, item).replies()[0]
            if reply.fault is not None or reply.value == {"lost": True}:
                return reply
            if reply.value != before:
                return Reply(None, "died", "its worker has ended, and the episode does not go the same way again")
        last: Reply = self._engine.host.begin(row.number, row.log[-1][0]).replies()[0]
        return last

    def _answer(self, row: Row, value: Mapping[str, Any], ended: Ending) -> None:
        """Act on what an environment says to a turn."""
        row.reward(value["reward"])
        if value.get("errors"):
            self._note("tools/errors", float(value["errors"]))
        if value["done"]:
            row.ended, row.outcome, row.environment = "environment", value["outcome"], value["environment"]
            return
        try:
            said = [kept(message) for message in (*value["messages"], *row.errors)]
        except ModelError as error:
            row.fail(str(error))
            return
        for message, call in zip(said, row.written[-1].get("tool_calls", ()), strict=False):
            message["tool_call_id"] = call["id"]
        ending = "turns" if row.turn >= self._engine.settings.max_turns else self._context(row, said, ended)
        row.ended = row.ended or ending
        if row.ended is not None and row.fault is None:
            self._ask(row, {"act": "end"})
