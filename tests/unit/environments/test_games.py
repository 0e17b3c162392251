"""Games of other packages through their adapters, played as a worker plays them."""

import itertools
import json
import re
import time
from pathlib import Path

import pytest

import oncurve.models.tiny
from fakes import openenv_server
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.base.paths import RECIPES
from oncurve.config import check_complete, load_config
from oncurve.data import DATA_KINDS, load_eval_rows, load_rows
from oncurve.environments import ENVIRONMENT_KINDS, Dialogue
from oncurve.environments.play import pickled
from oncurve.models.loading import load_tokenizer
from oncurve.rewards import RewardSet, unpickled
from oncurve.types import Completion, Group, Prompt

TOKENIZER = load_tokenizer(str(Path(oncurve.models.tiny.__file__).parent), local=True)
GAMES = Path(__file__).parents[2] / "fakes" / "games.py"


def episode(kind, base=RECIPES, **settings):
    """The worker's side of an environment: `ask(act, ...)`, one episode at a time."""
    player = unpickled(pickled(ENVIRONMENT_KINDS[kind](**settings))).player(base)
    common = {"key": "0", "seed": 11, "keep": False}

    def ask(act, **item):
        return player({**common, "act": act, **item})

    return ask


def begin(ask, **row):
    return ask("start", row=row, prompt="")["said"]


def reply(ask, text):
    found = ask("reply", text=text, calls=[])
    return "".join(each["content"] for each in found["messages"]), found


def bisected(ask, largest, form="{}"):
    """Play higher and lower well; returns the guesses, and the last reply."""
    low, high, guesses = 1, largest, 0
    while True:
        guess, guesses = (low + high) // 2, guesses + 1
        said, found = reply(ask, form.format(guess))
        if found["done"]:
            return guesses, found
        low, high = (guess + 1, high) if "higher" in said or said == "> " else (low, guess - 1)


def test_the_shipped_game_is_won_by_bisection_and_lost_without_a_number():
    ask = episode("gym_text", path="environments/guess.py:Guess", settings={"guesses": 4})
    for seed in range(30):
        assert begin(ask, seed=seed) == "1-9: "
        guesses, found = bisected(ask, 9)
        assert guesses <= 4
        assert (found["reward"], found["outcome"]) == (1.0, 0.0)
    begin(ask, seed=0)
    assert [reply(ask, text)[1]["reward"] for text in ("9 ", "none", "5")] == pytest.approx([1 / 18, 0, 0.3125])


@pytest.mark.parametrize(("name", "largest"), [("guess", 9), ("textarena_guess", 20)])
def test_shipped_demonstrations_are_streams_of_games(name, largest):
    rows = [json.loads(line) for line in (RECIPES / "demonstrations" / f"{name}.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["prompt"] == f"1-{largest}: "
        possible = set(range(1, largest + 1))
        for guess, hint in re.findall(r"(\d+) ([<>]?)", row["completion"]):
            higher, lower = set(range(int(guess) + 1, largest + 1)), set(range(1, int(guess)))
            possible &= {">": higher, "<": lower, "": {int(guess)} | higher | lower}[hint]
        assert possible
        assert re.fullmatch(r"(\d+ [<>] )*\d+ ", row["completion"])


def pegs(code, guess):
    black = sum(map(str.__eq__, code, guess))
    return "b" * black + "w" * (len(set(code) & set(guess)) - black) or "-"


CODES = ["".join(code) for code in itertools.permutations("123456", 2)]


def test_mastermind_is_won_by_the_first_code_that_agrees_with_all_pegs():
    pytest.importorskip("textarena")
    settings = load_config("textarena_mastermind")[0].environment
    ask = episode("textarena", **settings.model_dump(include={"id", "settings", "observation", "action"}))
    for seed in range(30):
        assert begin(ask, seed=seed) == "1-6: "
        possible, found = CODES, {"done": False}
        while not found["done"]:
            guess = possible[0]
            said, found = reply(ask, guess)
            possible = [code for code in possible if pegs(code, guess) == said.strip()]
        assert found["outcome"] == 1.0
    begin(ask, seed=0)
    assert [reply(ask, guess)[0] for guess in ("7", "11")] == ["! ", ""]


def test_the_demonstrations_of_mastermind_are_streams_of_games():
    lines = (RECIPES / "demonstrations" / "textarena_mastermind.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        *turns, last = [tuple(turn.split(":")) for turn in row["completion"].split(" ")]
        assert (row["prompt"], last[1]) == ("1-6: ", "")
        assert {guess for guess, _ in [*turns, last]} <= set(CODES)
        assert any(all(pegs(code, guess) == said for guess, said in turns) for code in CODES)


def test_countdown_is_right_with_each_number_once_and_the_target_alone():
    ask = episode("gym_text", path="environments/countdown.py:Countdown", settings={"count": 2})
    for seed in range(40):
        first, second, target = map(int, re.findall(r"\d+", begin(ask, seed=seed)))
        sums = {f"{first}+{second}": first + second, f"{second}-{first}": second - first}
        for said, result in {**sums, f" {first}*{second}\n": first * second, str(target): None}.items():
            begin(ask, seed=seed)
            assert reply(ask, said)[1]["reward"] == float(result == target)
    hostile = ["", "9**9**9", "1+", "(1+2)", "٣+٤", "1+2=3", "-1+2", "9" * 10**5]
    for said in hostile:
        begin(ask, seed=0)
        assert reply(ask, said)[1]["reward"] == 0.0


def test_the_demonstrations_of_countdown_are_right():
    ask = episode("gym_text", path="environments/countdown.py:Countdown")
    lines = (RECIPES / "demonstrations" / "countdown.jsonl").read_text().splitlines()
    for seed, row in enumerate(map(json.loads, lines), start=10**6):
        assert begin(ask, seed=seed) == row["prompt"]
        assert reply(ask, row["completion"])[1]["reward"] == 1.0
    assert len(lines) == 500


def test_gymnasium_is_played_by_name_with_functions_of_ones_own():
    pytest.importorskip("gymnasium")
    ask = episode(
        "gym_text",
        id="FrozenLake-v1",
        settings={"is_slippery": False},
        observation=f"{GAMES}:field",
        action=f"{GAMES}:move",
    )
    assert begin(ask, seed=3) == "field 0"
    for move in ["down", "down", "right", "right", "down"]:
        said, found = reply(ask, move)
        assert (found["reward"], found["done"]) == (0.0, False)
    assert said == "field 14"
    assert reply(ask, "right")[1] == {"messages": [], "reward": 1.0, "done": True, "errors": 0} | {
        "outcome": 0.0,
        "environment": None,
    }


def test_textarena_says_what_is_new_and_rewards_the_game():
    pytest.importorskip("textarena")
    ask = episode("textarena", id="GuessTheNumber-v0")
    assert "between 1 and 20" in begin(ask, seed=5)
    assert reply(ask, "well [1]")[0] == "The target number is higher."
    assert "invalid move" in reply(ask, "no number")[0]
    again = [bisected(ask, 20, "[{}]") for seed in (5, 5) if begin(ask, seed=seed)]
    assert again[0] == again[1]
    assert (again[0][1]["outcome"], again[0][1]["reward"]) == (1.0, None)
    begin(ask)  # without a seed by the episode's
    reply(ask, "[7]")
    assert ask("end")["outcome"] == 0.0


def test_skyrl_gym_is_made_of_the_rows_columns():
    pytest.importorskip("skyrl_gym")
    ask = episode("skyrl_gym", id="gsm8k_multi_turn", settings={"max_turns": 3})
    assert begin(ask, reward_spec={"ground_truth": "7"}) == []
    said, found = reply(ask, "is it #### 6")
    assert said.startswith("Please provide")
    assert found["reward"] == pytest.approx(0.2 / 3)
    assert reply(ask, "#### 7")[1]["reward"] == 1.0


def test_openenv_is_played_in_a_session_for_each_episode():
    pytest.importorskip("websockets")
    with openenv_server.running() as (url, sessions):
        ask = episode("openenv", url=url, observation_field="text")
        for number, seed in enumerate((4, 4, 9)):
            assert begin(ask, seed=seed, range="1-7") == "1-7: "
            guesses, found = bisected(ask, 7)
            assert guesses <= 3
            assert found["reward"] == 1.0
            assert len(sessions) == number + 1
        assert sessions[0]["number"] == sessions[1]["number"]
        begin(ask, seed=4, range="1-7")
        with pytest.raises(RuntimeError, match="the server does not step: invalid literal"):
            reply(ask, "seven")
        until = time.monotonic() + 60
        while not all("ended" in session for session in sessions):  # also that of the episode that failed
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_game_whose_package_lacks_is_refused_before_anything_is_loaded(monkeypatch):
    for module in ("environments.settings", "data.sources"):
        monkeypatch.setattr(f"oncurve.{module}.find_spec", lambda name: None)
    for words, extra in table("games", "extras"):
        config, _ = load_config("task", words)
        with pytest.raises(ConfigError, match=rf"is not installed: pip install 'oncurve\[{extra}\]'"):
            check_complete(config)


def test_seeds_are_rows_without_a_file_and_none_is_in_both_splits():
    settings = DATA_KINDS["seeds"](seed=3, size=4, eval_size=2, prompt="Play. ")
    train, held_out = load_rows(settings), load_eval_rows(settings)
    assert list(train.items) == [{"prompt": "Play. ", "seed": 3 + number} for number in range(4)]
    assert not {row["seed"] for row in train.items} & {row["seed"] for row in held_out.items}
    assert list(held_out.items) == list(load_eval_rows(DATA_KINDS["seeds"](eval_size=2, prompt="Play. ")).items)


@pytest.mark.parametrize("name", ["chain_sum", "letter_counting", "countdown"])
def test_reasoning_gym_scores_the_entry_of_the_row_in_a_worker(name):
    pytest.importorskip("reasoning_gym")
    settings = DATA_KINDS["reasoning_gym"](name=name, seed=7, size=6, eval_size=2)
    rows = list(load_rows(settings).items) + list(load_eval_rows(settings).items)
    assert rows == json.loads(json.dumps(rows))
    with RewardSet.build([{"kind": "reasoning_gym"}], base=None) as rewards:
        for row in rows:
            texts = [f"So it is\n#### {row['answer']}", row["answer"], "#### nothing"]
            completions = tuple(Completion((1,), text, (0.0,), "eos", n, 0) for n, text in enumerate(texts))
            group = rewards.score([Group(Prompt(0, row["prompt"], (1,), row), completions)])[0]
            right, bare, wrong = (score.reward for score in group.scores)
            assert (right, bare) == (1.0, 1.0)
            assert wrong < 0.5


def test_calls_are_read_in_their_plain_forms_and_in_their_order():
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"properties": {argument: {}}}}}
        for name, argument in (("add", "terms"), ("look", "word"))
    ]
    forms = {"add": "{}=?", "look": "<<{}>>"}
    dialogue = Dialogue(TOKENIZER, [TOKENIZER.eos_token_id], {}, forms)

    def calls(text):
        return dialogue.parsed((), TOKENIZER(text, add_special_tokens=False)["input_ids"], "", tools)[1]

    assert calls("a << b <<cat>> c\n1+1=?") == [
        {"name": "look", "arguments": {"word": "cat"}},
        {"name": "add", "arguments": {"terms": "1+1"}},
    ]
    assert calls("1*7=7\n7+1=? <<") == [{"name": "add", "arguments": {"terms": "7+1"}}]
    assert calls("1+1=2") == []
