"""One class, one row, one script: TRL's trainer and ours make the same prompt, tokens, mask, messages and rewards.

What ours make is held to expectations here; with TRL (installed, or in the folder `ONCURVE_TRL`) both are compared.
"""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from fakes.trl_trainers import END, NO_TRL, Scripted, arguments, call, ours, theirs, tokenizer
from oncurve.base.errors import UserError
from oncurve.compat.trl import GRPOConfig, GRPOTrainer
from oncurve.environments import Tools

ASKED = {"prompt": [{"role": "user", "content": "go"}]}


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Play in this process, where a test can look at it."""
    monkeypatch.setattr(Tools, "in_this_process", property(lambda self: True))


@pytest.fixture
def played(tmp_path):
    """What ours make, after a comparison with what TRL's makes."""

    def both(*given, **more):
        mine = ours(tmp_path / "ours", *given, **more)
        if NO_TRL is None:
            assert mine == theirs(tmp_path / "theirs", *given, **more)
        return mine

    return both


@pytest.mark.skipif(NO_TRL is not None, reason=str(NO_TRL))
def test_trl_is_here_to_be_compared_with():
    import trl

    assert trl.__version__.startswith("1.16")


class Adder:
    def reset(self, **row):
        self.sum, self.row = 0, row

    def add(self, x: int, y: int = 1) -> int:
        """Add two numbers.

        Args:
            x: The one.
            y: The other.
        """
        self.sum += x + y
        return x + y

    def get_reward(self) -> float:
        return float(self.sum)


def told(played):
    """What tools have said."""
    return [message["content"] for message in played.messages if message["role"] == "tool"]


def test_an_episode(played):
    turns = ["let me see " + call("add", x=2, y=3) + END, call("add", x=1) + END, "5 and 2" + END]
    (one,) = played(turns, environment_factory=Adder)
    assert [message["role"] for message in one.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert one.messages[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"x": 2, "y": 3}}
    assert one.messages[0]["content"] == "let me see"
    assert one.rewards == {"Adder": 7.0}
    assert (
        one.text
        == f"{turns[0]}\n<|im_start|>tool\n5{END}\n<|im_start|>assistant\n{turns[1]}\n<|im_start|>tool\n2{END}\n"
        f"<|im_start|>assistant\n{turns[2]}"
    )
    assert sum(one.mask) == sum(len(tokenizer()(turn)["input_ids"]) for turn in turns)


def test_without_a_response_template_calls_and_contents_are_the_same(tmp_path):
    turns = ["let me see\n" + call("add", x=2) + "\n" + call("add", x=3) + END, call("add", x=1) + END, "so" + END]
    known = ours(tmp_path / "known", turns, environment_factory=Adder)
    unknown = ours(tmp_path / "unknown", turns, environment_factory=Adder, response=None)
    assert known == unknown


@pytest.mark.parametrize(("rows", "word"), [([{"word": "a"}], "a"), (None, None)])
def test_neither_a_prompt_column_nor_data_are_needed_where_reset_asks(played, rows, word):
    class Env(Adder):
        def reset(self, **row):
            super().reset(**row)
            return f"guess {row.get('word')}"

    (one,) = played(["ok" + END], rows=rows, environment_factory=Env)
    assert f"<|im_start|>user\nguess {word}{END}" in one.prompt


def test_public_methods_are_tools_inherited_ones_too_and_properties_are_not(played):
    class Base:
        def inherited(self) -> str:
            """Inherit."""
            return "from the base"

    class Env(Base, Adder):
        @property
        def state(self):
            raise AssertionError("it was looked at")

        @classmethod
        def made(cls):
            """Make."""

        @staticmethod
        def static(x: int) -> int:
            """Return it.

            Args:
                x: It.
            """
            return x

        def _private(self):
            pass

    turns = [call("inherited") + END, call("static", x=4) + END, "ok" + END]
    (one,) = played(turns, environment_factory=Env)
    assert told(one) == ["from the base", "4"]
    names = [
        name
        for name in ("add", "inherited", "static", "state", "made", "_private")
        if f'"name": "{name}"' in one.prompt
    ]
    assert names == ["add", "inherited", "static"]


def test_an_unknown_tool_is_told(played):
    (one,) = played([call("nothing", x=1) + END, "ok" + END], environment_factory=Adder)
    assert told(one) == ["{'error': 'Tool nothing not found.'}"]


PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize("result", [7, None, {"a": [1]}, (2, 0), "text", 1.5, True, PARTS])
def test_results_are_texts_or_the_parts_of_a_content(played, result):
    class Env(Adder):
        def get(self) -> str:
            """Get it."""
            return result

    (one,) = played([call("get") + END, "ok" + END], environment_factory=Env)
    assert told(one) == [result if result is PARTS else str(result)]
    assert f"<|im_start|>tool\n{'one two' if result is PARTS else result}{END}" in one.text


def test_async_tools_run_together_and_get_reward_may_be_async(played):
    class Env:
        def reset(self, **row):
            self.meeting, self.met = None, 0

        async def meet(self, number: int) -> str:
            """Wait for the other.

            Args:
                number: Of this one.
            """
            if number == 0:
                raise KeyError("nobody")
            self.meeting = self.meeting or asyncio.Event()
            self.met += 1
            if self.met == 2:
                self.meeting.set()
            await asyncio.wait_for(self.meeting.wait(), 60)
            return f"met {number}"

        async def get_reward(self) -> float:
            await asyncio.sleep(0)
            return float(self.met)

    turns = [call("meet", number=1) + call("meet", number=0) + call("meet", number=2) + END, "ok" + END]
    (one,) = played(turns, environment_factory=Env)
    assert told(one) == ["met 1", "{'error': \"'nobody'\"}", "met 2"]
    assert one.rewards == {"Env": 2.0}


def test_a_column_picks_one_of_several_environments(played):
    class Shop:
        def reset(self, **row):
            self.row = row
            return " shopping"

        def buy(self, what: str) -> str:
            """Buy it.

            Args:
                what: It.
            """
            return f"bought {what} for {self.row}"

    rows = [{**ASKED, "environment": "adder"}, {**ASKED, "environment": "shop"}]

    def turns(text):
        return [(call("buy", what="tea") if "shopping" in text else call("add", x=1)) + END, "ok" + END]

    def one(completions, **_):
        return [1.0] * len(completions)

    environments = {"adder": Adder, "shop": Shop}
    adder, shop = played(turns, rows=rows, environment_factory=environments, reward_funcs=one)
    assert ("buy" in adder.prompt, "add" in shop.prompt) == (False, False)
    assert told(shop) == [f"bought tea for {ASKED}"]
    assert told(adder) == ["2"]
    assert (adder.rewards, shop.rewards) == ({"one": 1.0, "Adder": 2.0}, {"one": 1.0})


def test_instances_are_made_once_and_reset_often(tmp_path):
    class Env(Adder):
        def __init__(self):
            self.sum = 0
            made.append(self)

        def reset(self, **row):
            super().reset(**row)
            resets.append(self)

    made, resets = [], []
    given, options, script = arguments(["ok" + END], rows=[ASKED] * 2, environment_factory=Env)
    with GRPOTrainer(args=GRPOConfig(str(tmp_path / "run"), **options), **given) as trainer:
        run = trainer.run
        run.engine.inner = Scripted(script, run.config.rollout)
        for draw in range(3):
            run.engine.generate([run.prompts[index] for index in range(2)], draw)
    assert len(made) == 4  # two prompts, two samples
    assert len(resets) == 3 * 4 + 1  # and a rehearsal


def test_rewards_get_the_environments_as_they_are_at_the_end(played):
    def by_state(environments, completions, prompts, number, **columns):
        assert [len(each) for each in completions] == [3] * len(prompts)
        return [environment.sum + more for environment, more in zip(environments, number, strict=True)]

    def by_kwargs(**given):
        return [float(environment.sum) for environment in given["environments"]]

    turns = [call("add", x=4) + END, "ok" + END]
    (one,) = played(
        turns, rows=[{**ASKED, "number": 10}], environment_factory=Adder, reward_funcs=[by_state, by_kwargs]
    )
    assert one.rewards == {"by_state": 15.0, "by_kwargs": 5.0, "Adder": 5.0}


def test_functions_are_tools_without_an_environment_and_with_one(played):
    def double(x: int) -> int:
        """Double it.

        Args:
            x: It.
        """
        return 2 * x

    async def half(x: int) -> float:
        """Halve it.

        Args:
            x: It.
        """
        return x / 2

    def one(completions, **_):
        return [float(len(each)) for each in completions]

    turns = [call("double", x=4) + END, call("half", x=4) + END, "ok" + END]
    (alone,) = played(turns, tools=[double, half], reward_funcs=one)
    (both,) = played([*turns[:2], call("add", x=1) + END, "ok" + END], tools=[double, half], environment_factory=Adder)
    assert (told(alone), told(both)) == (["8", "2.0"], ["8", "2.0", "2"])
    assert alone.rewards == {"one": 5.0}
    assert both.rewards == {"Adder": 2.0}


def test_tool_tokens_count_and_a_last_turn_is_cut_off(played):
    turns = [call("add", x=4) + END, "123456789" * 9 + END]
    (one,) = played(turns, most=120, environment_factory=Adder)
    assert len(one.mask) == 120
    assert one.messages[-1]["content"].startswith("123456789")


@pytest.mark.parametrize("size", [17, 400, 10**6])
def test_a_result_that_is_too_long_is_dropped_and_the_episode_ends(played, size):
    class Env(Adder):
        def get(self) -> str:
            """Get much."""
            return "x" * size

    turns = [call("add", x=4) + END, call("get") + END, "ok" + END]
    (one,) = played(turns, most=210, environment_factory=Env)
    if size == 17:
        assert told(one) == ["5", "x" * 17]
    else:
        assert [message["role"] for message in one.messages] == ["assistant", "tool", "assistant"]
        assert one.text.endswith(turns[1])
        assert one.mask[-1] == 1
    assert one.rewards == {"Env": 5.0}


@pytest.mark.parametrize("most", [0, 1, 2])
def test_calls_after_the_last_iteration_are_not_made(played, most):
    (one,) = played([call("add", x=4) + END], most=1000, iterations=most, environment_factory=Adder)
    assert [message["role"] for message in one.messages] == ["assistant", "tool"] * most + ["assistant"]
    assert one.messages[-1]["tool_calls"]
    assert one.rewards == {"Adder": 5.0 * most}


def test_a_call_that_cannot_be_read_is_told_where_trl_ends_the_episode(tmp_path):
    turns = ['<tool_call>\n{"name": "add", x}\n</tool_call>' + END, call("add", x=1) + END, "ok" + END]
    for number, more in enumerate(({}, {"response": None})):
        (one,) = ours(tmp_path / str(number), turns, environment_factory=Adder, **more)
        assert [message["role"] for message in one.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert "error" in told(one)[0]
        assert told(one)[1] == "2"


def no_docstring(x: int) -> int:
    return x


def no_hint(x):
    """Return it.

    Args:
        x: It.
    """
    return x


def add(x: int) -> int:
    """Return it.

    Args:
        x: It.
    """
    return x


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tools": [no_docstring]}, "no_docstring.*docstring"),
        ({"tools": [no_hint]}, "no_hint.*type hint"),
        ({"tools": [add, add]}, "tool add: there are two of this name"),
        ({"tools": [add], "environment_factory": Adder}, "tool add: there are two of this name"),
        ({"tools": ["add"]}, "names nothing in a file"),
        ({"tools": [7]}, "expected functions"),
        ({"environment_factory": 7}, "expected classes"),
        ({"environment_factory": {"a": Adder}}, "data row 0: .*'environment' holds None, and the environments are 'a'"),
        ({"environment_factory": object}, "rewards: missing"),
        ({"environment_factory": lambda: object()}, "has no get_reward"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run(tmp_path, given, says):
    if "tools" in given:
        given["reward_funcs"] = lambda completions, **_: [0.0] * len(completions)
    given, options, _ = arguments(["ok" + END], **given)
    with pytest.raises(UserError, match=says):
        GRPOTrainer(args=GRPOConfig(str(tmp_path / "run"), **options), **given)


def test_tools_need_a_chat_template_that_shows_them(tmp_path):
    given, options, _ = arguments(["ok" + END], environment_factory=Adder)
    given["processing_class"].chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(UserError, match="chat template does not show tool calls"):
        GRPOTrainer(args=GRPOConfig(str(tmp_path / "run"), **options), **given)
    given, options, _ = arguments(["ok" + END], rows=[{"prompt": "go"}], environment_factory=Adder)
    with pytest.raises(UserError, match="the prompts are no chat"):
        GRPOTrainer(args=GRPOConfig(str(tmp_path / "run"), **options), **given)


class Wordle:
    def __init__(self):
        self.reward, self.done, self.lock = 0.0, False, threading.Lock()  # which cannot be copied

    def reset(self, **kwargs) -> str | None:
        self.reward, self.done, self.word = 0.0, False, kwargs.get("word", "crane")
        return "\nGuess the word of five letters."

    def get_reward(self):
        return None

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as "[abcde]".

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        self.done = guess.strip("[]") == self.word
        self.reward = float(self.done)
        return "".join(
            "G" if a == b else "Y" if a in self.word else "X"
            for a, b in zip(guess.strip("[]"), self.word, strict=False)
        )


class Catalogue:
    items: ClassVar = {"tea": 3.5, "milk": 1.0}

    def reset(self, budget: float = 5.0, **_) -> list:
        self.budget, self.cart = budget, []
        return [{"type": "text", "text": f" You have {budget}."}]

    def search(self, words: list[str], most: int | None = None) -> dict[str, float]:
        """Search the catalogue.

        Args:
            words: The words to look for.
            most: The highest price, or nothing for any.
        """
        return {name: price for name, price in self.items.items() if name in words and price <= (most or 99)}

    async def buy(self, name: str, how: Literal["card", "cash"] = "card") -> str:
        """Buy a thing.

        Args:
            name: The thing.
            how: The means. (choices: ["card", "cash"])
        """
        await asyncio.sleep(0)
        self.budget -= self.items[name]
        self.cart.append((name, how))
        return f"{name} is yours, {self.budget} left"

    def _internal(self):
        raise AssertionError

    def get_reward(self):
        return len(self.cart) + self.budget / 4


@dataclass
class Sandbox:
    files: dict = field(default_factory=dict)

    def reset(self, prompt, **_):
        self.files = {"task.txt": str(prompt[-1]["content"])}

    def read(self, path: str) -> str:
        """Read a file.

        Args:
            path: Its path.
        """
        return self.files[path]

    def write(self, path: str, text: str) -> None:
        """Write a file.

        Args:
            path: Its path.
            text: The content.
        """
        self.files[path] = text

    async def get_reward(self) -> float:
        return float("42" in self.files.get("answer.txt", ""))


def state_reward(environments, **kwargs) -> list[float]:
    return [environment.reward for environment in environments]


@pytest.mark.parametrize(
    ("factory", "turns", "said", "rewards"),
    [
        (lambda: Wordle(), [call("guess", guess="[crate]"), call("guess", guess="[crane]"), call("guess", guess="x")],
         ["GGGXG", "GGGGG", "{'error': 'Game over.'}"], {"state_reward": 1.0}),
        (Catalogue, [call("search", words=["tea", "x"]), call("buy", name="tea") + call("buy", name="gone")],
         ["{'tea': 3.5}", "tea is yours, 1.5 left", "{'error': \"'gone'\"}"], {"Catalogue": 1.375}),
        (Sandbox,
         [call("read", path="task.txt"), call("write", path="answer.txt", text="42 \u00e9"), call("read", path="no")],
         ["go", "None", "{'error': \"'no'\"}"], {"Sandbox": 1.0}),
    ],
    ids=["wordle", "catalogue", "sandbox"],
)  # fmt: skip
def test_environments_of_tutorials_run_unchanged(played, factory, turns, said, rewards):
    reward = {"reward_funcs": state_reward} if "state_reward" in rewards else {}
    (one,) = played([*(turn + END for turn in turns), "done" + END], environment_factory=factory, most=2000, **reward)
    assert told(one) == said
    assert one.rewards == pytest.approx(rewards)
