from __future__ import annotations

from typing import Any

import pytest
import torch

from oncurve.data import InMemory, Prompts, Task, load_rows, open_prompts
from oncurve.errors import DataError


class Letters:
    """A tokenizer whose tokens are code points; its chat template is `<role>content` for each message, then `<>`."""

    bos_token_id = 1

    def __init__(self, chat: bool = False) -> None:
        self.chat_template = "yes" if chat else None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        if messages[-1]["role"] == "assistant":
            raise ValueError("the last message must be the user's")
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<>"
        return [ord(letter) for letter in text]

    def decode(self, ids: tuple[int, ...]) -> str:
        return "".join(map(chr, ids))


def opened(row: Any, chatty: bool = False, tokenizer: Any = "letters", **settings: Any) -> Prompts:
    made = InMemory(rows=(row,), **settings)
    return open_prompts(load_rows(made), made, Letters(chatty) if tokenizer == "letters" else tokenizer)


def said_to_model(prompts: Prompts) -> str:
    return Letters().decode(prompts[0].ids)


def test_a_string_is_asked_as_it_is_and_other_columns_reach_the_reward():
    prompt = opened({"prompt": "2+2=", "answer": "4", "level": None})[0]
    assert prompt.id == 0
    assert prompt.text == "2+2="
    assert prompt.ids == (50, 43, 50, 61)
    assert prompt.columns == {"answer": "4", "level": None}
    assert prompt.messages is None


def test_a_template_asks_with_columns_which_all_reach_the_reward():
    prompts = opened({"question": "2+2?", "prompt": "unused"}, template="Q: {question}")
    assert said_to_model(prompts) == "Q: 2+2?"
    assert prompts[0].columns == {"question": "2+2?", "prompt": "unused"}


def test_a_string_becomes_a_users_message_where_there_is_a_chat_template():
    prompts = opened("hi", chatty=True)
    assert said_to_model(prompts) == "<user>hi<>"
    assert prompts[0].messages == ({"role": "user", "content": "hi"},)
    assert prompts[0].text == "hi"


def test_chat_can_be_refused_and_asked_for():
    assert said_to_model(opened("hi", chatty=True, chat="never")) == "hi"
    with pytest.raises(DataError, match=r"data row 0: .* has no chat template"):
        opened("hi", chat="always")


def test_a_system_message_comes_first():
    assert said_to_model(opened("hi", chatty=True, system="Be brief.")) == "<system>Be brief.<user>hi<>"
    messages = [{"role": "user", "content": "hi"}]
    assert said_to_model(opened({"prompt": messages}, chatty=True, system="S")) == "<system>S<user>hi<>"
    with pytest.raises(DataError, match="no chat template"):
        opened("hi", system="Be brief.")


def test_messages_go_through_the_chat_template_and_errors_name_the_row():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    prompts = opened({"prompt": messages}, chatty=True)
    assert said_to_model(prompts) == "<user>a<assistant>b<user>c<>"
    assert prompts[0].text == "a\nb\nc"
    with pytest.raises(DataError, match="data row 0: the model's chat template refuses these messages"):
        opened({"prompt": messages[:2]}, chatty=True)


@pytest.mark.parametrize("ids", [[65, 66], torch.tensor([65, 66])])
def test_token_ids_are_taken_as_they_are(ids: Any):
    assert opened({"prompt": ids})[0].ids == (65, 66)
    assert opened({"prompt": ids})[0].text == "AB"
    assert opened({"prompt": ids}, tokenizer=None)[0].text == ""


def test_words_need_a_tokenizer():
    with pytest.raises(DataError, match="data row 0: a prompt in words needs a tokenizer"):
        opened("hi", tokenizer=None)


def test_a_prompt_that_is_too_long_is_refused_by_its_place():
    with pytest.raises(DataError, match=r"data row 0: the prompt has 5 tokens, more than 4; .* data.overlong = 'drop'"):
        opened("12345", max_prompt_tokens=4)


def test_prompts_that_are_too_long_are_dropped_and_counted_and_the_rest_keep_their_ids():
    settings = InMemory(rows=("12345", "12", "123456", "1"), max_prompt_tokens=4, overlong="drop")
    prompts = open_prompts(load_rows(settings), settings, Letters())
    assert prompts.dropped == 2
    assert [prompts[index].id for index in range(len(prompts))] == [1, 3]
    with pytest.raises(DataError, match="every one of the 4 prompts has more than 0 tokens"):
        open_prompts(load_rows(settings), settings, Letters(), fits=0)


def test_what_fits_the_model_bounds_prompts_too():
    settings = InMemory(rows=("12345", "12"), overlong="drop", max_prompt_tokens=100)
    assert open_prompts(load_rows(settings), settings, Letters(), fits=3).dropped == 1
    assert open_prompts(load_rows(settings), settings, Letters()).dropped == 0


def test_a_few_generated_prompts_speak_for_all():
    settings = Task(size=10**7)
    assert len(open_prompts(load_rows(settings), settings, Letters(), fits=1000)) == 10**7
    few = Task(size=40, overlong="drop")
    lengths = [len(row["prompt"]) for row in load_rows(few).items]
    prompts = open_prompts(load_rows(few), few, Letters(), fits=sorted(lengths)[20])
    assert 0 < prompts.dropped < 40
    assert len(prompts) == 40 - prompts.dropped
