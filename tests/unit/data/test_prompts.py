from __future__ import annotations

from typing import Any

import pytest
import torch

from oncurve.base.errors import DataError
from oncurve.data import InMemory, Prompts, TaskRows, load_rows, open_prompts


class Letters:
    """A tokenizer whose tokens are code points; its chat template is `<role>content` for each message, then `<>`."""

    bos_token_id = 1

    def __init__(self, chat: bool = False) -> None:
        self.chat_template = "yes" if chat else None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        if messages[-1]["role"] == "assistant":
            raise ValueError("the last message must be the user's")
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<>"

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
    with pytest.raises(DataError, match="data row 0: a prompt that is text needs a tokenizer"):
        opened("hi", tokenizer=None)


@pytest.mark.parametrize("ids", [[65, -1], [-(10**30)], torch.tensor([65, -1])])
def test_negative_token_ids_are_refused(ids: Any):
    with pytest.raises(DataError, match="data row 0: column 'prompt' holds a negative token id"):
        opened({"prompt": ids})


@pytest.mark.parametrize("ids", [[65, 100], [2**63], [10**30, 1], torch.tensor([100])])
def test_token_ids_that_the_model_does_not_have_are_refused(ids: Any):
    settings = InMemory(rows=([65, 99], ids))
    with pytest.raises(
        DataError, match=r"data row 1: the prompt holds the token id .*; the model has ids from 0 to 99"
    ):
        open_prompts(load_rows(settings), settings, Letters(), vocabulary=100)
    assert len(open_prompts(load_rows(settings).first(1), settings, Letters(), vocabulary=100)) == 1


@pytest.mark.parametrize("depth", [10, 60, 500, 20_000])
def test_no_row_is_nested_too_deeply_for_what_it_goes_through_later(depth: int):
    nested: Any = "a"
    for _ in range(depth):
        nested = [nested]
    settings = InMemory(rows=({"prompt": "hi", "answer": nested},))
    if depth == 10:
        assert len(load_rows(settings)) == 1
    else:
        with pytest.raises(DataError, match="data row 0: column 'answer' is nested too deeply"):
            load_rows(settings)


def test_a_prompt_without_tokens_is_refused_by_its_place():
    class Blind(Letters):
        bos_token_id = None  # with one it would stand alone

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text.strip()]}

    settings = InMemory(rows=("1", " "))
    with pytest.raises(DataError, match="data row 1: an empty prompt: the tokenizer makes no token of it"):
        open_prompts(load_rows(settings), settings, Blind())


def test_half_a_character_is_refused_in_every_column():
    for row in ({"answer": "a\ud800"}, {"answer": [{"x": "\udc00"}]}, {"\ud800": 1}):
        with pytest.raises(DataError, match=r"data row 0: column .* holds half a character"):
            opened({"prompt": "hi", **row})


def test_a_prompt_that_is_too_long_is_refused_by_its_place_with_all_lengths_and_a_limit_that_would_do():
    settings = InMemory(rows=tuple("x" * length for length in range(1, 101)), max_prompt_tokens=90)
    says = (
        r"data row 90: the prompt has 91 tokens; 10 of 100 prompts have more than the 90 allowed \(tokens: p50 50, "
        r"p90 90, p99 99, max 100\); raise the limit \(data.max_prompt_tokens=100\), or leave them out "
        r"\(data.overlong=drop\), or keep their last tokens \(data.overlong=truncate_left\)$"
    )
    with pytest.raises(DataError, match=says):
        open_prompts(load_rows(settings), settings, Letters())
    for fix in ({"max_prompt_tokens": 100}, {"overlong": "drop"}):
        fixed = settings.model_copy(update=fix)
        assert len(open_prompts(load_rows(fixed), fixed, Letters())) in (90, 100)
    free = settings.model_copy(update={"max_prompt_tokens": None})
    with pytest.raises(DataError, match=r"5 of 100 .*; lower rollout.max_new_tokens by 5, or leave them out"):
        open_prompts(load_rows(free), free, Letters(), fits=95)


def test_prompts_that_are_too_long_are_dropped_and_counted_and_the_rest_keep_their_ids():
    settings = InMemory(rows=("12345", "12", "123456", "1"), max_prompt_tokens=4, overlong="drop")
    prompts = open_prompts(load_rows(settings), settings, Letters())
    assert prompts.dropped == 2
    assert [prompts[index].id for index in range(len(prompts))] == [1, 3]
    with pytest.raises(DataError, match=r"all 4 prompts are too long; .* lower rollout.max_new_tokens by 6$"):
        open_prompts(load_rows(settings), settings, Letters(), fits=0)


def test_what_fits_the_model_bounds_prompts_too():
    settings = InMemory(rows=("12345", "12"), overlong="drop", max_prompt_tokens=100)
    assert open_prompts(load_rows(settings), settings, Letters(), fits=3).dropped == 1
    assert open_prompts(load_rows(settings), settings, Letters()).dropped == 0


def test_a_few_generated_prompts_speak_for_all():
    settings = TaskRows(size=10**7)
    assert len(open_prompts(load_rows(settings), settings, Letters(), fits=1000)) == 10**7
    few = TaskRows(size=40, overlong="drop")
    lengths = [len(row["prompt"]) for row in load_rows(few).items]
    prompts = open_prompts(load_rows(few), few, Letters(), fits=sorted(lengths)[20])
    assert 0 < prompts.dropped < 40
    assert len(prompts) == 40 - prompts.dropped


def test_prompts_that_are_too_long_keep_their_last_tokens_and_are_counted():
    settings = InMemory(rows=("12345", "12", "123456"), max_prompt_tokens=4, overlong="truncate_left")
    prompts = open_prompts(load_rows(settings), settings, Letters())
    whole = open_prompts(load_rows(settings), settings.model_copy(update={"max_prompt_tokens": None}), Letters())
    assert (prompts.truncated, prompts.dropped, len(prompts)) == (2, 0, 3)
    assert [prompts[n].ids for n in range(3)] == [whole[n].ids[-4:] for n in range(3)]
    assert prompts[1] == whole[1]
    assert prompts.first(1)[0].ids == whole[0].ids[-4:]
    with pytest.raises(DataError, match="all 3 prompts are too long"):
        open_prompts(load_rows(settings), settings, Letters(), fits=0)
