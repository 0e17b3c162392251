"""The `model_judge` kind: a language model at an OpenAI-compatible endpoint scores a completion.

Covered: a template over columns and completion, a strict reading of the answer, several requests at once, deadlines,
retries, a file of answers for exact resumes, a spending limit, a key that is stored nowhere.
Not covered: comparisons of several completions in one request, step rewards.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, JsonValue, model_validator

from oncurve.base.errors import ConfigError, RewardError
from oncurve.processes.pool import WorkerReply
from oncurve.rewards.functions.callables import OFFERED, Accepts
from oncurve.rewards.functions.verify import Pattern
from oncurve.rewards.judge.asking import Asking, RemoteModel, Replies, Request, Unanswered
from oncurve.rewards.settings import RewardSettings, Runner, Seconds

CHECK_SECONDS = 5.0
OWN_KEYS = ("model", "messages", "temperature", "max_tokens", "n", "stream")
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\n\s*```\s*", re.DOTALL)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError: a key is there twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is there twice")
    return table


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of an endpoint; it is like 'http://localhost:8000/v1'")
    return url.rstrip("/").removesuffix("/chat/completions")


def _checked_template(template: str) -> str:
    from jinja2 import TemplateSyntaxError

    try:
        columns = _Template(template).columns
    except TemplateSyntaxError as error:
        raise ValueError(f"not a Jinja template: line {error.lineno}: {error.message}") from error
    if not {"completion", "completion_ids"} & set(columns):
        raise ValueError("a template must contain the text that is to be scored: {{ completion }}")
    return template


class ModelJudge(RewardSettings):
    """The score that a language model gives, asked at an OpenAI-compatible endpoint (`POST url/chat/completions`).

    The message is `template` with the columns, `prompt` and `completion` filled in. The answer must hold one score,
    found by `pattern` or in the JSON key `field`, between `low` and `high`; anything else is a fault, and `on_error`
    says what becomes of it. Equal requests are sent once. Answers are kept in the run's folder, in `replies/`, and a
    resumed run reads them there.
    """

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = False
    default: ClassVar[str | None] = "model_judge"

    url: Annotated[str, AfterValidator(_checked_url)]
    """The endpoint, up to `/chat/completions`: "http://localhost:8000/v1"."""

    model: str = Field(min_length=1)
    """The model's name at the endpoint."""

    template: Annotated[str, AfterValidator(_checked_template)]
    """A Jinja template of the message: `{{ completion }}`, `{{ prompt }}`, and columns by name."""

    system: str | None = None
    """A system message, as it stands; none: no such message."""

    pattern: Pattern | None = None
    """A pattern of Python's `re` that is found once in the answer; its only group is the score: `Score: (\\d+)`."""

    field: str | None = Field(default=None, min_length=1)
    """In place of a pattern: the key of the score in an answer that is one JSON object and nothing else."""

    low: float = 0.0
    """The smallest score; a smaller one is a fault."""

    high: float = 1.0
    """The largest score; a larger one is a fault."""

    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The name of the environment variable that holds the key; none: no key is sent. The key itself is stored nowhere.
    """

    temperature: float | None = Field(default=0.0, ge=0)
    """The model's sampling temperature; none: it is not sent."""

    max_tokens: int | None = Field(default=512, gt=0)
    """The most tokens of an answer; none: it is not sent."""

    extra_body: dict[str, JsonValue] = Field(default_factory=dict)
    """More keys of the request: `{ seed = 1 }`, `{ max_completion_tokens = 512 }`, `{ response_format = {...} }`."""

    concurrency: int = Field(default=8, ge=1, le=256)
    """The number of requests at once."""

    timeout_seconds: Seconds = 60.0
    """The limit for the score of one completion, with all tries and waits."""

    retries: int = Field(default=4, ge=0, le=20)
    """Further tries after a refused or broken connection, 429 or 5xx, after 0.5, 1, 2, ... s or what the endpoint
    asks for."""

    max_requests: int | None = Field(default=None, gt=0)
    """The spending limit: the most answered requests of the whole run, resumes included; none: no limit. Reaching it
    ends the run in order."""

    max_total_tokens: int | None = Field(default=None, gt=0)
    """The same in tokens of requests and answers, as the endpoint counts them; requests on their way may exceed it."""

    @model_validator(mode="after")
    def _fits(self) -> ModelJudge:
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query or parts.fragment:  # not shown: it may be a secret
            raise ValueError("url: an address without a user, a password or a query; a key is named by api_key_env")
        if (self.pattern is None) == (self.field is None):
            raise ValueError("give a pattern with one group, like 'Score: ([0-9.]+)', or a field, the key in JSON")
        if self.pattern is not None and (groups := re.compile(self.pattern).groups) != 1:
            raise ValueError(
                f"pattern: it has {groups} groups; put the score, and nothing else, in parentheses; (?:...) groups "
                "without"
            )
        if self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not below high, {self.high:g}")
        for key in sorted(self.extra_body.keys() & set(OWN_KEYS)):
            raise ValueError(f"extra_body: {key!r} is set by the reward itself; leave it out")
        return self

    def complaint(self, row: Mapping[str, Any]) -> str | None:
        """Return why the template cannot be filled in with the columns of `row`, or None if it can."""
        try:
            self.filled({"completion": "", "prompt": "", "completion_ids": [], **row})
        except Exception as error:  # a template of the user's may raise anything
            return f"its template cannot be filled in: {error}"
        return None

    @cached_property
    def filled(self) -> _Template:
        """The template, which is called with the values of an item."""
        return _Template(self.template)

    def request(self, item: Mapping[str, Any]) -> Request:
        """Return the request for an item, and the hash of what decides its answer: the body, not the address."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        messages = [*system, {"role": "user", "content": self.filled(item)}]
        sent = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        body = {"model": self.model, "messages": messages, **self.extra_body}
        body |= {name: value for name, value in sent.items() if value is not None}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest(), body

    def read(self, text: str) -> WorkerReply:
        """Return the score in an answer; a fault of kind "type" where it holds none, several, or one outside the
        bounds.
        """
        try:
            score = self._score(text)
        except ValueError as error:
            return WorkerReply(None, "type", f"{error}: {text.strip()!r:.300}")
        if not self.low <= score <= self.high:  # not so for NaN
            bounds = f"{self.low:g} and {self.high:g}"
            return WorkerReply(None, "type", f"the score {score:g} is not between {bounds}: {text.strip()!r:.300}")
        return WorkerReply(score)

    def _score(self, text: str) -> float:
        if self.pattern is not None:
            found = re.findall(self.pattern, text)
            if len(found) != 1:
                raise ValueError(f"the pattern is found {len(found)} times, not once, in the answer")
            try:
                return float(found[0])
            except ValueError:
                raise ValueError(f"{found[0]!r:.40} is no number, in the answer") from None
        fenced = _FENCE.fullmatch(text)
        try:
            said = json.loads(fenced[1] if fenced else text, object_pairs_hook=_table)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                "a key is twice in the answer" if "twice" in str(error) else "the answer is no JSON"
            ) from None
        score = said.get(self.field) if isinstance(said, dict) else None
        if not isinstance(score, (int, float)) or isinstance(score, bool):
            raise ValueError(f"no number under {self.field!r} in the answer")
        return float(score)

    def start(self, base: Path | None) -> Runner:
        """Ask from this process. Raises ConfigError: no key, or nothing answers at the address."""
        runner = EndpointRunner(self, RemoteModel(self.url, self._key(), self.retries))
        problem = runner.endpoint.check(min(CHECK_SECONDS, self.timeout_seconds))
        if problem is not None:
            raise ConfigError(f"url: {problem}; start the server, or correct url or api_key_env")
        return runner

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise ConfigError(f"api_key_env: the environment variable {self.api_key_env} is not set: export it")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"api_key_env: the value of {self.api_key_env} is no key: it has blanks or control signs")
        return key


class EndpointRunner:
    """Asks the model about items, several at once; `begin` while other groups are still being sampled."""

    def __init__(self, settings: ModelJudge, endpoint: RemoteModel) -> None:
        self.settings, self.endpoint = settings, endpoint
        self.replies = Replies(settings.read, settings.max_requests, settings.max_total_tokens)
        self.keep_in, self.close = self.replies.keep_in, self.replies.close
        self.about: Any = Accepts(needs=tuple((name,) for name in settings.filled.columns)).as_json()

    @property
    def announcement(self) -> str:
        """Return what leaves this machine, for the plan."""
        sent = [name for (name,) in self.about["needs"]]
        most = {"requests": self.settings.max_requests, "tokens": self.settings.max_total_tokens}
        limits = " and ".join(f"{limit:,} {what}" for what, limit in most.items() if limit is not None)
        return (
            f"sends {', '.join(sent)} to {self.settings.model} at {self.settings.url}; limit: "
            f"{limits or 'none (max_requests, max_total_tokens)'}"
        )

    def begin(self) -> Asking:
        """Return the requests of one scoring."""
        return Asking(self.settings.request, self.replies.get, self._answer, self.settings.concurrency)

    def run(self, items: Sequence[Any]) -> list[WorkerReply]:
        """Return one reply per item, in order."""
        with self.begin() as asking:
            asking.add(items)
            return asking.replies()

    async def _answer(self, request: Request) -> WorkerReply:
        key, body = request
        try:
            with self.replies.request():
                text, tokens = await self.endpoint.answer(body, self.settings.timeout_seconds)
            text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be stored
            return self.replies.add(key, text, tokens)
        except Unanswered as error:
            kind, message = error.args
            return WorkerReply(None, kind, f"{message}{' (timeout_seconds)' * (kind == 'timeout')}")
        except RewardError as error:
            raise RewardError(f"reward {self.settings.name or self.settings.default_name}: {error}") from error


class _Template:
    """A Jinja template, filled in within a sandbox; `columns` are the names that it reads."""

    def __init__(self, text: str) -> None:
        from jinja2 import StrictUndefined, meta  # here: settings of other kinds do not need it
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        names = meta.find_undeclared_variables(environment.parse(text)) - set(environment.globals)
        self.columns = tuple(sorted(names, key=lambda name: (name in OFFERED, name)))
        self._template = environment.from_string(text)

    def __call__(self, item: Mapping[str, Any]) -> str:
        """Return the text with the values of `item`. Raises what the template raises."""
        return str(self._template.render(item))
