from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoTokenizer

from fakes.tables import table
from oncurve.base.errors import ConfigError, DataError, ModelError
from oncurve.config import load_config
from oncurve.data import Files, InMemory, PromptOrder, Prompts, Rows, load_rows, open_prompts
from oncurve.data.columns import fill, template_columns
from oncurve.models import tiny
from oncurve.types import Prompt


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


def test_messages_go_through_the_chat_template_and_errors_name_the_row():
    messages = table("prompts", "messages")
    prompts = opened({"prompt": messages}, chatty=True)
    assert said_to_model(prompts) == "<user>a<assistant>b<user>c<>"
    assert prompts[0].text == "a\nb\nc"
    with pytest.raises(DataError, match="data row 0: the model's chat template refuses these messages"):
        opened({"prompt": messages[:2]}, chatty=True)


ABOVE, BELOW = (
    "the prompt holds the token id .*; the model has ids from 0 to 99",
    "column 'prompt' holds a negative token id",
)


@pytest.mark.parametrize(
    ("ids", "says"),
    [([65, 100], ABOVE), ([10**30, 1], ABOVE), (torch.tensor([100]), ABOVE), ([65, -1], BELOW), ([-(10**30)], BELOW)],
)
def test_token_ids_that_the_model_does_not_have_are_refused(ids: Any, says: str):
    settings = InMemory(rows=([65, 99], ids))
    with pytest.raises(DataError, match=f"data row 1: {says}"):
        open_prompts(load_rows(settings), settings, Letters(), vocabulary=100)
    if says is ABOVE:  # the others are refused when they are read
        assert len(open_prompts(load_rows(settings).first(1), settings, Letters(), vocabulary=100)) == 1


def test_a_prompt_without_tokens_is_refused_by_its_place():
    class Blind(Letters):
        bos_token_id = None  # with one it would stand alone

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text.strip()]}

    settings = InMemory(rows=("1", " "))
    with pytest.raises(DataError, match="data row 1: an empty prompt: the tokenizer makes no token of it"):
        open_prompts(load_rows(settings), settings, Blind())


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


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}0{% endif %}"
)


@pytest.fixture
def tokenizer() -> Any:
    made = AutoTokenizer.from_pretrained(tiny.path())
    made.chat_template = TEMPLATE
    return made


def texts(tokenizer: Any, **settings: Any) -> list[str]:
    rows = Rows([{"prompt": "1+1=", "hint": "2"}], [0], lambda number: f"row {number}")
    teacher = "{hint} {prompt}"
    prompt = open_prompts(rows, Files(path="x", **settings), tokenizer, teacher=teacher)[0]
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt.ids, prompt.teacher_ids)]


def test_they_reach_the_prompt_and_the_teachers(tokenizer: Any) -> None:
    assert texts(tokenizer) == ["1+1=", "2 1+1="]
    assert texts(tokenizer, chat_template_kwargs={"enable_thinking": True}) == ["1+1=", "2 1+1="]
    assert texts(tokenizer, chat_template_kwargs={"enable_thinking": False}) == ["1+1=0", "2 1+1=0"]


def test_a_name_that_the_template_does_not_use_is_refused(tokenizer: Any) -> None:
    near = "does not use 'enable_thinkin'; did you mean 'enable_thinking'?"
    with pytest.raises(ModelError, match=re.escape(near)):
        texts(tokenizer, chat_template_kwargs={"enable_thinkin": False})
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match=r"data\.chat_template_kwargs: the model's chat template is missing"):
        texts(tokenizer, chat_template_kwargs={"enable_thinking": False})


@pytest.mark.parametrize(("words", "error"), table("prompts", "refused_settings"))
def test_settings_that_cannot_be(words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load_config(None, words)


def test_columns_are_put_in_and_double_braces_are_braces():
    template = "{question}\nAnswer as {{json}}: {answer}"
    assert template_columns(template) == ("question", "answer")
    assert fill(template, {"question": "2+2?", "answer": 4}) == "2+2?\nAnswer as {json}: 4"


def test_what_a_column_holds_is_not_a_template():
    assert fill("{a}", {"a": "{b}"}) == "{b}"


def test_a_name_is_a_column_never_an_attribute_or_an_item():
    with pytest.raises(KeyError):
        fill("{a.__class__}", {"a": 1})
    with pytest.raises(KeyError):
        fill("{a[0]}", {"a": [1]})
    assert fill("{info.answer}", {"info.answer": 4}) == "4"


@pytest.mark.parametrize("template", ["no column", "{", "}", "{}", "{a!r}", "{a:>10}", '{"question": 1}', "{a"])
def test_what_is_no_template_is_refused(template: str):
    with pytest.raises(ValueError, match=r"column"):
        template_columns(template)


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=100 + n, text=str(n), ids=(n,)) for n in range(count)]


def ids(order: PromptOrder, cursor: int, count: int) -> list[int]:
    return [prompt.id for prompt in order.take(cursor, count)[0]]


def test_each_epoch_is_a_permutation_and_differs_from_the_last():
    order = PromptOrder(prompts(20), seed=3)
    first, second = ids(order, 0, 20), ids(order, 20, 20)
    assert sorted(first) == sorted(second) == list(range(100, 120))
    assert first != second
    assert first != ids(PromptOrder(prompts(20), seed=4), 0, 20)


def test_without_shuffle_the_order_is_that_of_the_source():
    assert ids(PromptOrder(prompts(3), seed=3, shuffle=False), 2, 5) == [102, 100, 101, 102, 100]


@given(st.integers(1, 9), st.integers(0, 50), st.lists(st.integers(1, 12), max_size=6))
def test_what_is_taken_depends_on_the_cursor_only(size: int, start: int, counts: list[int]):
    order, cursor, taken = PromptOrder(prompts(size), seed=1), start, []
    for count in counts:
        some, cursor = order.take(cursor, count)
        taken += [prompt.id for prompt in some]
    assert cursor == start + sum(counts)
    assert taken == (ids(PromptOrder(prompts(size), seed=1), start, len(taken)) if taken else [])


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


def test_half_a_character_is_refused_in_every_column():
    for row in ({"answer": "a\ud800"}, {"answer": [{"x": "\udc00"}]}, {"\ud800": 1}):
        with pytest.raises(DataError, match=r"data row 0: column .* holds half a character"):
            opened({"prompt": "hi", **row})


def test_what_fits_the_model_bounds_prompts_too():
    settings = InMemory(rows=("12345", "12"), overlong="drop", max_prompt_tokens=100)
    assert open_prompts(load_rows(settings), settings, Letters(), fits=3).dropped == 1
    assert open_prompts(load_rows(settings), settings, Letters()).dropped == 0


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
