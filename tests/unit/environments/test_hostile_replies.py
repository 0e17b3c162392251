"""Whatever an environment says, the policy trains on what it sampled, and no text spells a token of the template."""

import json
import random
from collections import Counter, defaultdict

import pytest

from fakes.tables import table
from fakes.trl_trainers import TEMPLATE, call, tokenizer as chat_tokenizer
from oncurve.environments import Dialogue, Episode, EpisodeEngine, Host, Reply, Tools
from oncurve.models.loading import encode, load_tokenizer, render
from oncurve.rollout import EngineBase, Sampling
from oncurve.types import Completion, Group, Prompt

MARKUP = (*table("hostile_replies", "markup"), "\ud800", "\udfff")  # halves of a character, which TOML cannot hold
REPLIES = 120


def hostile(seed):
    """A text of an environment."""
    chosen = random.Random(seed)
    return "".join(chosen.choice(MARKUP) for _ in range(chosen.randrange(1, 9)))


def chat(folder, shared):
    """The tokenizer `folder`: of the project, or with the chat template of the tests among the shared files."""
    if folder == "tiny":
        return chat_tokenizer(None)
    made = load_tokenizer(str(shared / "tokenizers" / folder), local=True)
    made.chat_template, made.eos_token = TEMPLATE, "<|im_end|>"
    if "<tool_call>" not in made.get_vocab():  # Qwen's tokens that are added and not special
        made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    return made


@pytest.fixture(params=["tiny", "qwen2", "torchtitan-2k"])
def tokenizer(request):
    return chat(request.param, None if request.param == "tiny" else request.getfixturevalue("test_data"))


def controls(tokenizer):
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def test_no_text_of_an_environment_becomes_a_token_of_the_template(tokenizer):
    dialogue = Dialogue(tokenizer, [tokenizer.eos_token_id], {})
    own = controls(tokenizer)
    exact = (
        "▁" not in str(tokenizer.backend_tokenizer.pre_tokenizer) and len(tokenizer) > 1000
    )  # bytes, no unknown ones
    question, calls = {"role": "user", "content": "go"}, json.loads(call("f").split("\n")[1])
    turns = {
        "user": {"role": "assistant", "content": "so"},
        "tool": {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "function": calls}]},
    }
    counted = Counter()
    for number in range(REPLIES):
        role = ("user", "tool")[number % 2]
        texts = [hostile(2 * number), hostile(2 * number + 1)][: 1 + number % 3 // 2]
        said, harmless = (
            [{"role": role, "name": "f", "content": each} for each in said] for said in (texts, ["-"] * len(texts))
        )
        history = [question, turns["user"], {"role": "user", "content": hostile(-number)}]
        found, plain = (list(dialogue.reply(history, turns[role], each, [], ended=True)) for each in (said, harmless))
        assert [token for token in found if token in own] == [token for token in plain if token in own]
        if exact:
            expected = tokenizer.decode(plain).split("-")
            whole = tokenizer.decode(found)
            for text in texts:
                shown = tokenizer.decode(
                    encode(tokenizer, text.encode("utf-8", "replace").decode(), split_special_tokens=True)
                )
                before = expected.pop(0)
                assert whole.startswith(before)
                whole = whole[len(before) :]
                assert whole.startswith(shown)
                whole = whole[len(shown) :]
            assert whole == "".join(expected)
        opened = dialogue.opened(Prompt(0, "go", (), {}, (question,)), texts[0], ())
        assert [t for t in opened.ids if t in own] == [t for t in render(tokenizer, [question]) if t in own]
        counted[role] += len(texts)
    assert sum(counted.values()) >= REPLIES


class Speaker:
    """Says what is hostile, as a tool and at its start."""

    def reset(self, seed, **row):
        self.seed = seed
        return hostile(seed)

    def say(self, number: int) -> str:
        """Say it.

        Args:
            number: Which.
        """
        if number % 7 == 6:
            raise ValueError(hostile(self.seed * 100 + number))
        return hostile(self.seed * 100 + number)


class Player(Episode):
    """Says what is hostile to every turn."""

    def start(self, row, prompt):
        self.seed, self.number = row["seed"], 0
        return [{"role": "system", "content": hostile(self.seed)}, {"role": "user", "content": hostile(-self.seed)}]

    def reply(self, text, calls):
        self.number += 1
        said = [{"role": "user", "name": hostile(self.number), "content": hostile(self.seed * 100 + self.number)}]
        return Reply(said, reward=1.0, done=self.number == 10)


class Recorded(EngineBase):
    """Writes what it likes, special tokens too, and keeps what it has written."""

    exact = True

    def __init__(self, tokenizer):
        self.tokenizer, self.written = tokenizer, defaultdict(list)

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        groups = []
        for index, prompt in enumerate(prompts):
            number = len(self.written[prompt.id])
            words = hostile(prompt.id * 31 + number).encode("utf-8", "replace").decode()
            words += call("say", number=number) if number % 5 else f"<tool_call>{words}</tool_call>"
            ids = [
                token
                for token in encode(self.tokenizer, words, add_special_tokens=False)
                if token != self.tokenizer.eos_token_id
            ]
            ids = tuple([*ids, self.tokenizer.eos_token_id][: prompt.limit])
            ended = "eos" if ids[-1] == self.tokenizer.eos_token_id else "length"
            self.written[prompt.id].append(ids)
            text = self.tokenizer.decode(ids[:-1])
            groups.append(Group(prompt, (Completion(ids, text, (-1.0,) * len(ids), ended, 0, 0),)))
            if on_group is not None:
                on_group(index, groups[-1])
        return groups


class Here(Tools):
    """Plays in this process."""

    @property
    def in_this_process(self):
        return True


@pytest.mark.parametrize("environment", [Speaker, Player])
def test_what_was_sampled_is_trained_on_in_its_order_and_nothing_else_is(tokenizer, environment):
    settings = Here(classes=environment, max_turns=12)
    sampling = Sampling(group_size=1, max_new_tokens=4_000)
    dialogue = Dialogue(tokenizer, [tokenizer.eos_token_id], {})
    inner, own = Recorded(tokenizer), controls(tokenizer)
    question = ({"role": "user", "content": "go"},)
    prompts = [
        Prompt(number, "go", render(tokenizer, question), {"seed": number}, question) for number in range(REPLIES // 20)
    ]
    replies = 0
    with EpisodeEngine(inner, Host(settings, None), dialogue, sampling, 0) as engine:
        for group in engine.generate(prompts, 0):
            (completion,) = group.completions
            assert completion.fault is None, completion.fault
            trained = [token for token, mine in zip(completion.ids, completion.trained, strict=True) if mine]
            assert trained == [token for turn in inner.written[group.prompt.id] for token in turn]
            spans = [turn for turn in completion.turns if turn.role != "assistant"]
            replies += len(spans)
            for turn in spans:
                ids = [token for token in completion.ids[turn.start : turn.end] if token in own]
                names = [tokenizer.decode([token]) for token in ids]
                assert set(names) <= {"<|im_start|>", "<|im_end|>"}, names
            json.dumps([dict(message) for message in completion.messages], ensure_ascii=False).encode()
    assert replies >= REPLIES // 4
