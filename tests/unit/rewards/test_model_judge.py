"""A reward by a language model at an endpoint: a real server on this machine answers, well and badly."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.chat_server import ChatServer, Says
from fakes.messages import message_of
from fakes.scoring import faults_of, group, rewards_of
from fakes.tables import table
from oncurve.base.errors import ConfigError, RewardError
from oncurve.rewards import ModelJudge, RewardSet
from oncurve.rewards.judge import asking

Build = Callable[..., RewardSet]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def build(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    monkeypatch.setattr(asking, "FIRST_WAIT_SECONDS", 0.01)
    made: list[RewardSet] = []

    def build(**settings: Any) -> RewardSet:
        made.append(RewardSet.build([scorer_at(server.url, **settings)]))
        return made[-1]

    yield build
    for rewards in made:
        rewards.close()


def scorer_at(url: str, **settings: Any) -> dict[str, Any]:
    form = {} if "pattern" in settings else {"field": "score"}
    return {"kind": "model_judge", "url": url, "model": "m", "template": "{{ completion }}", **form, **settings}


def scores(message: str, number: int) -> Says:
    return Says(json.dumps({"score": len(message) / 10}))


def test_each_completion_gets_the_score_that_the_model_gives(server: ChatServer, build: Build) -> None:
    server.says = scores
    rewards = build(template="{{ completion }}", system="Be strict.", extra_body={"seed": 1}, max_tokens=9)
    scored = rewards.score([group("a", "abc", "abcde"), group("ab", number=1)])
    assert rewards_of(scored) == [0.1, 0.3, 0.5, 0.2]
    path, headers, body = server.asked[0]
    assert (path, headers["Content-Type"], "Authorization" in headers) == (
        "/v1/chat/completions",
        "application/json",
        False,
    )
    assert body | {"messages": None} == {"model": "m", "temperature": 0.0, "max_tokens": 9, "seed": 1, "messages": None}
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}


READ = table("model_judge", "read") | {"[" * 5000: "the answer is no JSON"}


@pytest.mark.parametrize("text", READ, ids=lambda text: text[:20])
def test_a_json_answer_is_read_strictly(text: str) -> None:
    reply = ModelJudge.model_validate({k: v for k, v in scorer_at("http://x").items() if k != "kind"}).read(text)
    expected = READ[text]
    assert reply.value == (expected if isinstance(expected, float) else None)
    assert (reply.fault, str(expected) in reply.message) == (None, False) if reply.value is not None else ("type", True)


@pytest.mark.parametrize(("text", "expected"), table("model_judge", "found_once"))
def test_a_pattern_is_found_once(server: ChatServer, build: Build, text: str, expected: Any) -> None:
    server.says = lambda message, number: Says(text)
    rewards = build(pattern=r"Score: ([0-9.]*[0-9])", high=10)
    (scored,) = rewards.score([group("a")])
    if isinstance(expected, float):
        assert scored.scores[0].reward == expected
    else:
        assert expected in (scored.scores[0].fault or "")


def test_a_fault_is_masked_and_the_others_keep_their_scores(server: ChatServer, build: Build) -> None:
    server.says = lambda message, number: Says("no idea") if message == "b" else scores(message, number)
    scored = build().score([group("a", "b", "abc")])
    assert rewards_of(scored) == [0.1, None, 0.3]
    assert faults_of(scored) == [None, "type", None]


TROUBLE = {
    "429": (Says(status=429, headers={"Retry-After": "0"}), "429 Too Many Requests"),
    "500": (Says("broken", status=500), "500 Internal Server Error"),
    "503": (Says(status=503), "503"),
    "a page": (Says(raw=b"<html>busy</html>"), "not a chat completion: '<html>busy</html>'"),
    "no choices": (Says(raw=b'{"choices": []}'), "not a chat completion"),
    "nothing": (Says(raw=b""), "not a chat completion"),
    "a list": (Says(content=["x"]), "the answer's content is a list"),
    "cut off": (Says(cut=True), "no answer after 3 tries"),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_what_may_pass_is_tried_again_and_then_a_fault(server: ChatServer, build: Build, trouble: str) -> None:
    bad, words = TROUBLE[trouble]
    server.says = lambda message, number: bad if message == "bad" or number < 2 else Says()
    scored = build(retries=2).score([group("good", "bad")])
    assert rewards_of(scored) == [0.5, None]
    assert faults_of(scored) == [None, "exception"]
    assert words in (scored[0].scores[1].fault or "")
    assert sorted(server.messages) == ["bad"] * 3 + ["good"] * 3


@pytest.mark.parametrize("slow", [Says(wait_seconds=30), Says(drip_seconds=0.1)], ids=["late", "in drips"])
def test_a_deadline_holds_for_answers_that_are_late_or_drip(server: ChatServer, build: Build, slow: Says) -> None:
    server.says = lambda message, number: slow if message == "slow" else Says()
    scored = build(timeout_seconds=1.0).score([group("slow", "x")])
    assert faults_of(scored) == ["timeout", None]
    assert "no answer within 1 s (1 try)" in (scored[0].scores[0].fault or "")


def test_requests_are_sent_at_once_but_not_more_than_allowed(server: ChatServer, build: Build) -> None:
    server.says = lambda message, number: Says(wait_seconds=0.2)
    build(concurrency=3).score([group(*"abcdef")])
    assert server.most_at_once == 3


def test_answers_are_kept_so_that_a_second_run_has_the_same(server: ChatServer, build: Build, tmp_path: Path) -> None:
    answers = iter(['{"score": 0.1}', "garbage", '{"score": 0.3}'])
    server.says = lambda message, number: Says(next(answers))
    first = build(concurrency=1)
    first.keep_in(tmp_path / "replies")
    before = first.score([group("a", "b", "c")])
    first.close()
    with (tmp_path / "replies/model_judge.jsonl").open("a") as file:
        file.write('{"key": "torn')  # as a kill leaves it
    second = build(concurrency=5)
    second.keep_in(tmp_path / "replies")
    assert second.score([group("a", "b", "c")]) == before
    assert len(server.asked) == 3
    assert faults_of(before) == [None, "type", None]


def test_the_limit_of_requests_holds_over_resumes_and_loses_no_answer(
    server: ChatServer, build: Build, tmp_path: Path
) -> None:
    first = build(max_requests=3)
    first.keep_in(tmp_path)
    first.score([group("a", "b")])
    with pytest.raises(
        RewardError, match=r"reward model_judge: the spending limit is reached: max_requests = 3; .*goes on"
    ):
        first.score([group("c", "d", "e")])
    assert len(server.asked) == 3
    first.close()
    again = build(max_requests=3)
    again.keep_in(tmp_path)
    with pytest.raises(RewardError, match="answered so far: 3 requests and 30 tokens"):
        again.score([group("f")])
    again.close()
    raised = build(max_requests=5)
    raised.keep_in(tmp_path)
    assert rewards_of(raised.score([group("a", "b", "c", "d", "e")])) == [0.5] * 5
    assert len(server.asked) == 5


def test_the_key_is_sent_and_stands_nowhere(
    server: ChatServer, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADER_KEY", "sk-secret")
    rewards = build(api_key_env="GRADER_KEY", retries=0)
    rewards.keep_in(tmp_path)
    server.says = lambda message, number: Says() if message == "a" else Says(raw=b"bad key sk-secret", status=500)
    scored = rewards.score([group("a", "b")])
    assert server.asked[0][1]["Authorization"] == "Bearer sk-secret"
    assert "bad key ***" in (scored[0].scores[1].fault or "")
    shown = repr([component.runner.__dict__ for component in rewards.components]) + repr(scored)
    assert "sk-secret" not in shown + (tmp_path / "model_judge.jsonl").read_text() + "".join(rewards.announcements)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *table("model_judge", "refused"),
        ({"pattern": "Score: [0-9]+", "field": None}, "it has 0 groups"),
        ({"pattern": "(", "field": None}, "not a regular expression"),
        ({"field": None}, "give a pattern with one group"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    message = message_of(ConfigError, RewardSet.build, [scorer_at("http://localhost:1/v1") | settings])
    assert said in message
    assert "secret" not in message
