"""The workers that play episodes, seen from the run: an episode stays with the worker in which it began.

`rehearsed` plays a short episode before a run, without a model, to see whether the environment's code works.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from oncurve.base.closing import Closing
from oncurve.base.errors import ConfigError, DataError, refuse
from oncurve.environments.settings import EnvironmentSettings
from oncurve.environments.tools import BY_COLUMN
from oncurve.processes.pool import Job, WorkerPool, WorkerReply
from oncurve.rewards import Accepts, InProcess
from oncurve.types import Prompt

MADE_UP = "a made-up turn"


class _Here:
    """A job of one item in this process."""

    def __init__(self, future: Future[list[WorkerReply]], done: SimpleQueue[Any]) -> None:
        self.replies, self.close, self._done = future.result, future.cancel, future.done
        future.add_done_callback(lambda _: done.put(None))

    @property
    def ready(self) -> bool:
        """Return whether `replies` would not wait."""
        return self._done()


def asked(prompt: Prompt) -> str | list[dict[str, Any]]:
    """Return what an environment is given as its prompt: the messages of a chat, or the text."""
    return [dict(each) for each in prompt.messages] if prompt.messages else prompt.text


Pending = Job | _Here
"""A reply that is being made."""


class Host(Closing):
    """Plays episodes: `settings.processes` workers with one episode's call at a time each, or this process.

    The workers start with the first episode.
    """

    def __init__(self, settings: EnvironmentSettings, base: Path | None) -> None:
        self.settings, self._base = settings, base
        self.pools: list[WorkerPool] = []
        self._here: InProcess | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._about: Mapping[str, Any] = {}

    def about(self) -> Mapping[str, Any]:
        """Return the `tools` of the environment, and whether a turn without a call `answers`.

        Raises ConfigError: its code cannot be loaded, or its package is not installed.
        """
        if not self.pools and self._here is None:
            refuse(self.settings.missing())
            if not self.settings.in_this_process:
                self.pools = [self.settings.workers(self._base) for _ in range(self.settings.processes)]
                try:
                    self._about = self.pools[0].about
                except ConfigError:
                    self.close()
                    if not self.settings.objects:
                        raise
            if not self.pools:  # its objects cannot be copied, or a worker cannot load the copy
                player: Any = self.settings.player(self._base or Path.cwd())
                player.here = True
                self._here, self._about = InProcess(player, Accepts()), player.about
                self._thread = ThreadPoolExecutor(1, "oncurve-environment")
        return self._about

    def tools_of(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the tools that the policy is shown for a row."""
        tools: Any = self.about()["tools"]
        return list(tools.get(str(row.get(BY_COLUMN, "")), ()) if isinstance(tools, Mapping) else tools)

    def ready(self) -> None:
        """Wait until all workers have loaded their code. Raises ConfigError: one cannot."""
        self.about()
        for pool in self.pools:
            assert pool.about is not None

    def begin(self, episode: int, item: Mapping[str, Any], done: SimpleQueue[Any] | None = None) -> Pending:
        """Begin to make the reply to an item of the episode number `episode`; `done` gets None when it is there.

        Raises DataError: the item is not JSON.
        """
        if self._here is not None and self._thread is not None:
            return _Here(self._thread.submit(self._here.run, [item]), done or SimpleQueue())
        job = self.pools[episode % len(self.pools)].begin(done)
        try:
            job.add([item])
        except TypeError as error:
            raise DataError(f"environment: a column cannot be sent to its worker: {error}") from error
        job.expect()
        return job

    def close(self) -> None:
        """End the workers. Twice is allowed; `about` starts others."""
        for pool in self.pools:
            pool.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.pools, self._here, self._thread = [], None, None


def rehearsed(host: Host, row: Mapping[str, Any], prompt: Any, check: Callable[[Any], object]) -> list[tuple[str, str]]:
    """Play one turn for a row; returns (role, text) of all that was said, and of what the environment gave.

    The policy's turn is made up, without a tool call. `check` is given what the environment says at the start.

    Raises ConfigError: the environment's code cannot be loaded, or fails in the way that is told. What `check` raises.
    """
    answers = host.about()["answers"]
    if host.settings.programs:
        return _called(host, row, prompt)
    opened = _asked(host, {"act": "start", "row": dict(row), "prompt": prompt})["said"]
    check(opened)
    said = [(role, _text(each)) for role, each in (("prompt", prompt), ("environment", opened)) if each]
    reply = _asked(host, {"act": "end"} if answers else {"act": "reply", "text": MADE_UP, "calls": []})
    said += [("assistant", MADE_UP), *((each["role"], _text(each["content"])) for each in reply.get("messages", ()))]
    outcome = (reply if "outcome" in reply else _asked(host, {"act": "end"}))["outcome"]
    return said + _numbers(reward=reply.get("reward"), outcome=outcome)


def _called(host: Host, row: Mapping[str, Any], prompt: Any) -> list[tuple[str, str]]:
    """Run a program whose calls get made-up answers. What it does after the first of them is no mistake of it."""
    from oncurve.environments.endpoint import ChatCall, EndpointServer, answered  # here: its packages are an extra

    host.ready()
    said, reply = list[tuple[str, str]](), WorkerReply(None, "timeout", "it made no call")
    with suppress(Empty), EndpointServer() as server:
        line = server.open()
        item = {"address": server.address, "key": line.key, "row": dict(row), "prompt": prompt, "seed": 0}
        with closing(host.begin(0, item, line.events)) as pending:
            while (event := line.events.get(timeout=host.settings.timeout_seconds)) is not None:
                if isinstance(call := event[1], ChatCall) and said:
                    call.refuse("an episode before a run has one call", "max_turns")
                elif isinstance(call, ChatCall):
                    said += [*((each["role"], each["content"]) for each in call.messages), ("assistant", MADE_UP)]
                    call.settle(200, answered(MADE_UP, (), "eos", 1, 1))
            reply = pending.replies()[0]
    if not said:
        why = "it made no call" if reply.fault is None else f"{reply.fault}: {reply.message.strip()}"
        raise ConfigError(f"environment: the program failed for the first row ({why})")
    return said + _numbers(outcome=None if reply.fault is not None else reply.value["outcome"])


def _numbers(**given: float | None) -> list[tuple[str, str]]:
    return [(name, f"{number:g}") for name, number in given.items() if number is not None]


def _asked(host: Host, item: dict[str, Any]) -> Any:
    reply = host.begin(0, {**item, "key": "trial", "seed": 0, "keep": False}).replies()[0]
    if reply.fault is not None:
        does = {"start": "its start", "reply": "its reply", "end": "its reward"}[item["act"]]
        raise ConfigError(f"environment: {does} failed for the first row ({reply.fault}):\n{reply.message.strip()}")
    return reply.value


def _text(content: Any) -> str:
    parts = [content] if isinstance(content, str) else content
    return "\n".join(str(p.get("content", p.get("text", p))) if isinstance(p, Mapping) else str(p) for p in parts)
