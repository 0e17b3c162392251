"""User functions: three signatures, in a worker or here, filled by name."""

import asyncio
import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes.scoring import group, rewards_of
from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError
from oncurve.base.imports import locate
from oncurve.rewards import RewardSet, path_of

USER_FILE = """
import helper_of_the_user

def columns(completion: str, answer, level=7):
    return float(completion == answer) + (0 if level == 7 else level)

def trl(prompts, completions, answer, **kwargs):
    assert len(prompts) == len(completions) == len(answer)
    assert "trainer_state" not in kwargs
    return [None if a is None else float(c == a) for c, a in zip(completions, answer)]

def chat(prompts, completions):
    right = [{"role": "assistant", "content": "4"}]
    return [p[0]["role"] == "user" and c == right for p, c in zip(prompts, completions)]

def heavy(completion):
    import sys
    return float(len({"asyncio", "pydantic", "torch"} & sys.modules.keys()))

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source in (None, "openai/gsm8k")
    return {"score": float(solution_str == ground_truth), "acc": extra_info}

def positional(completion, /):
    return 1.0

def mistaken(text):
    return 1.0

def short(completion: str, limit: int, unit: float = 1.0) -> float:
    return unit * (len(completion) <= limit)

def all_short(completions, limit, **columns):
    return [float(len(text) <= limit) for text in completions]

waiting = []

async def together(completion):
    from asyncio import sleep
    waiting.append(completion)
    while len(waiting) < 3:
        await sleep(0)
    return float(len(waiting))

async def endless(completion):
    from asyncio import Event
    await Event().wait() if completion == "endless" else waiting.append(completion)
    return float(len(waiting))
"""


@pytest.fixture(scope="module")
def user_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(USER_FILE)
    (folder / "helper_of_the_user.py").write_text("")
    return folder / "mine.py"


def scored(user_file: Path, name: str, *groups: Any, step: int = 0) -> list[float | None]:
    table = {"path": f"mine.py:{name}", "processes": 1}
    with RewardSet.build([table], base=user_file.parent) as rewards:
        assert rewards.announcements == []
        return rewards_of(rewards.score(groups or (group("4", "5"),), step))


def test_columns_by_name(user_file: Path) -> None:
    assert scored(user_file, "columns") == [1.0, 0.0]
    assert scored(user_file, "columns", group("4", "5", columns={"answer": "5", "level": 3})) == [3.0, 4.0]


def test_trl_conversations(user_file: Path) -> None:
    asked = ({"role": "user", "content": "2+2"},)
    assert scored(user_file, "chat", group("4", "5", messages=asked)) == [1.0, 0.0]


def test_a_worker_imports_what_it_serves_alone(user_file: Path) -> None:
    assert scored(user_file, "heavy") == [0.0, 0.0]


def test_a_row_without_what_a_function_needs_is_named_before_the_run(user_file: Path) -> None:
    cases = table("callables", "needed")
    whole = dict.fromkeys(("answer", "text", "question"), "1")
    for name, (columns, words) in cases.items():
        with RewardSet.build([{"path": f"mine.py:{name}", "processes": 1}], base=user_file.parent) as rewards:
            rewards.check_rows([whole] * 3, str)
            rows = [whole, dict.fromkeys(columns, "1"), whole, dict.fromkeys(columns, "1")]
            with pytest.raises(DataError, match=rf"^place 1: reward {name} needs {words}.*\(and so 1 other row\)$"):
                rewards.check_rows(rows, "place {}".format)
            if name == "compute_score":
                rewards.check_rows([{"reward_model": {"ground_truth": "1"}}, {"ground_truth": None}], str)
                with pytest.raises(DataError, match="needs 'reward_model'"):
                    rewards.check_rows([{"reward_model": {"style": "rule"}}], str)


@pytest.mark.parametrize(("path", "words"), table("callables", "refused"))
def test_a_function_that_cannot_be_used_is_refused_before_the_run(user_file: Path, path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardSet.build([{"path": path, "processes": 1}], base=user_file.parent)


def test_the_calls_of_an_async_function_wait_next_to_each_other(user_file: Path) -> None:
    assert scored(user_file, "together", group("a", "b"), group("c")) == [3.0, 3.0, 3.0]
    begun: list[str] = []

    async def columns(completion: str) -> float:
        begun.append(completion)
        while len(begun) < 3:
            await asyncio.sleep(0)
        return 1.0

    async def trl(completions: list[str]) -> list[float]:
        return [await columns("both") for _ in completions]

    with RewardSet.build([columns, trl]) as rewards:
        assert rewards_of(rewards.score([group("a", "b")])) == [2.0, 2.0]


def test_a_late_call_of_an_async_function_disturbs_no_other(user_file: Path) -> None:
    table = {"path": "mine.py:endless", "processes": 1, "timeout_seconds": 3}
    with RewardSet.build([table], base=user_file.parent) as rewards:
        scores = [*rewards.score([group("a", "endless", "b")])[0].scores, *rewards.score([group("c")])[0].scores]
    assert [score.reward for score in scores] == [1.0, 0.0, 2.0, 3.0]
    assert "no answer within 3 seconds (timeout_seconds)" in str(scores[1].fault)

    async def here(completion: str) -> float:
        if completion == "own":
            raise TimeoutError(f"mine\nof {len(scores)}")
        return await asyncio.sleep(1000 * (completion == "endless"), 1.0)

    with RewardSet.build([{"function": here, "timeout_seconds": 3}]) as rewards:
        _, late, own = rewards.score([group("a", "endless", "own")])[0].scores
    assert late.fault == "timeout: here: no answer within 3 seconds (timeout_seconds)"
    assert own.fault == "exception: here: TimeoutError: mine"


def test_all_async_calls_of_a_process_run_in_one_event_loop_beside_a_notebooks_which_an_exit_does_not_end() -> None:
    loops: list[object] = []

    async def watching(completion: str) -> float:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        if completion == "exit":
            sys.exit(3)
        return 1.0

    async def notebook() -> Any:
        with RewardSet.build([watching]) as rewards:
            return [rewards_of(rewards.score([group(text)])) for text in ("a", "exit", "b")]

    one, _, other = asyncio.run(notebook())
    assert one == other == [1.0]
    assert len(set(loops)) == 1


def test_what_a_script_defines_travels_to_workers_unless_it_would_not_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        """
import os, re, functools
import torch
from oncurve.rewards.functions.python import why_in_process
LIMIT = 3
PATTERN = re.compile("a")
calls = []
def plain(completion): return len(PATTERN.findall(completion)) > LIMIT
def helper(text): return os.path.basename(text)
def indirect(completion): return len(helper(completion))
def counting(completion): calls.append(completion); return 1.0
def calls_counting(completion): return counting(completion)
def tensors(completions, **k): return torch.ones(len(completions))
recursive = lambda completion: recursive(completion[1:]) if completion else 0.0
for f in (plain, indirect, recursive, functools.partial(plain), len):
    assert why_in_process(f) is None, (f, why_in_process(f))
print(why_in_process(counting), "|", why_in_process(calls_counting), "|", why_in_process(tensors))
"""
    )
    run = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    assert run.stdout == "it uses the variable calls | it uses the variable calls | it uses torch\n", run.stderr


@pytest.mark.parametrize("name", ["short", "all_short"])
def test_functions_get_their_keyword_arguments(user_file: Path, name: str) -> None:
    table = {"path": f"mine.py:{name}", "processes": 1}
    for limit, expected in ((4, [1.0, 0.0]), (11, [1.0, 1.0])):
        with RewardSet.build([table | {"kwargs": {"limit": limit}}], base=user_file.parent) as rewards:
            scored = rewards.score([group("four", "eleven long", columns={"limit": 1})])  # a column does not count
            assert rewards_of(scored) == expected


@pytest.mark.parametrize(("name", "kwargs", "error"), table("callables", "refused_arguments"))
def test_keyword_arguments_that_a_function_does_not_take_are_refused(
    user_file: Path, name: str, kwargs: Any, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        RewardSet.build([{"path": f"mine.py:{name}", "kwargs": kwargs, "processes": 1}], base=user_file.parent)


SOURCE = """
import functools

def length(completion):
    return float(len(completion))

def wrapping(function):
    @functools.wraps(function)
    def inner(completion):
        return function(completion)
    return inner

@wrapping
def decorated(completion):
    return 0.0

other = length
short = lambda completion: 1.0

def twice(completion):
    return 1.0

def twice(completion, answer):
    return 2.0
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "lengths_é.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lengths_é")
    del sys.modules["lengths_é"]


def test_a_function_at_the_top_of_a_file_has_the_path_by_which_a_worker_finds_it(module: ModuleType) -> None:
    path = path_of(module.length)
    assert path == f"{module.__file__}:length"
    assert locate(str(path))("four") == 4.0
    assert path_of(module.other) == path
    assert str(path_of(module.twice)).endswith(":twice")  # the one that the name means


NOT_BY_PATH: dict[str, Callable[[ModuleType], Any]] = {
    "a decorated one": lambda module: module.decorated,
    "a closure": lambda module: module.wrapping(module.length),
    "a lambda": lambda module: module.short,
    "a part of a function": lambda module: functools.partial(module.length),
    "one of a package": lambda module: path_of,
    "a builtin": lambda module: len,
    "a class": lambda module: Path,
}


@pytest.mark.parametrize("what", NOT_BY_PATH)
def test_others_have_none(module: ModuleType, what: str) -> None:
    assert path_of(NOT_BY_PATH[what](module)) is None


def test_verls_compute_score_finds_the_truth(user_file: Path) -> None:
    for columns in (
        {"reward_model": {"style": "rule", "ground_truth": "4"}, "answer": "no", "data_source": "openai/gsm8k"},
        {"ground_truth": "4", "answer": "no"},
        {"answer": "4"},
    ):
        assert scored(user_file, "compute_score", group("4", "5", columns=columns)) == [1.0, 0.0]
