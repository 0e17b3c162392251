"""Rows of TRL and verl become prompts with the tokens that are trained after them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fakes.demonstrations import CHATS, chat_tokenizer, demonstrations
from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import DataError
from oncurve.data import Demonstrations, InMemory, load_demonstrations

END = 2
ASK, ANSWER = {"role": "user", "content": "w4 w5"}, {"role": "assistant", "content": "w6"}


def read(found: Demonstrations, index: int = 0) -> tuple[list[int], list[int], list[bool]]:
    prompt = found[index]
    completion = found.completion(prompt)
    return list(prompt.ids), list(completion.ids), list(completion.trained or (True,) * len(completion.ids))


@pytest.mark.parametrize(("row", "chat"), table("demonstrations", "forms"))
def test_each_form_gives_the_same_tokens(row: dict[str, Any], chat: bool) -> None:
    asked = [50, 4, 5, 51] if chat else [4, 5]
    assert read(demonstrations([row], chat=chat)) == (asked, [6, END], [True, True])


def test_a_text_is_trained_from_its_second_token_on() -> None:
    assert read(demonstrations([{"text": "w4 w5 w6"}], chat=True)) == ([4], [5, 6, END], [True] * 3)


def test_a_prompt_is_trained_where_that_is_wanted() -> None:
    found = demonstrations([{"prompt": "w4 w5", "completion": "w6"}], train_on_prompts=True)
    assert read(found) == ([4], [5, 6, END], [True] * 3)


def test_of_a_chat_every_turn_of_the_assistant_is_trained_and_no_other_token() -> None:
    prompt, ids, trained = read(demonstrations(CHATS, chat=True))
    assert prompt == [50, 3, 50, 4, 5, 51]
    assert ids == [6, END, 52, 50, 7, 51, 8, 9, 10, END]
    assert trained == [True, True, False, False, False, False, True, True, True, True]


@pytest.mark.parametrize("written", [lambda tools: tools, json.dumps])
def test_tools_of_a_row_stand_in_its_chat(written: Callable[[Any], Any]) -> None:
    tools = [{"type": "function", "function": {"name": "w20"}}]
    found = demonstrations([{**CHATS[0], "tools": written(tools)}], chat=True)
    plain = read(demonstrations(CHATS, chat=True))
    assert read(found) == ([20, *plain[0]], *plain[1:])
    assert list(found[0].ids) == chat_tokenizer().apply_chat_template(
        CHATS[0]["messages"][:2], tools=tools, add_generation_prompt=True, return_dict=False
    )


@pytest.mark.parametrize("tools", ["hammer, saw", ["hammer"], 3])
def test_tools_that_are_no_schemas_are_refused_with_their_place(tools: Any) -> None:
    with pytest.raises(DataError, match=r"data row 0: column 'tools': expected a list of JSON schemas"):
        demonstrations([{**CHATS[0], "tools": tools}], chat=True)


def test_settings_of_the_data_make_the_prompts() -> None:
    rows = [{"question": "w4", "solution": "w6"}]
    found = demonstrations(rows, template="w3 {question}", columns={"completion": "solution"})
    assert read(found) == ([3, 4], [6, END], [True, True])
    assert read(demonstrations([{"prompt": "w4", "completion": "w6"}], chat=True, system="w9"))[0] == [50, 9, 50, 4, 51]


def test_a_row_that_is_too_long_is_refused_or_left_out_and_never_cut() -> None:
    rows = [{"prompt": "w4", "completion": "w6"}, {"prompt": "w4", "completion": "w6 w7 w8"}]
    with pytest.raises(DataError, match=r"1 of 2 demonstrations have more than the 3 tokens allowed .*data row 1"):
        demonstrations(rows, longest=3)
    found = demonstrations(rows, longest=3, drop=True)
    assert (len(found), found.dropped, read(found)) == (1, 1, ([4], [6, END], [True, True]))
    with pytest.raises(DataError, match="no demonstration is left"):
        demonstrations(rows, longest=2, drop=True)


@pytest.mark.parametrize(("rows", "says"), table("demonstrations", "refused"))
def test_what_is_no_demonstration_is_refused_with_its_place(rows: list[Any], says: str) -> None:
    assert says in message_of(DataError, demonstrations, rows)


def test_a_template_that_renders_earlier_turns_differently_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{{ messages|length }} " + tokenizer.chat_template
    monkeypatch.setattr("fakes.demonstrations.chat_tokenizer", lambda: tokenizer)
    with pytest.raises(DataError, match="renders earlier turns in another way"):
        demonstrations(CHATS, chat=True)


def test_held_out_rows_are_read_in_the_same_form() -> None:
    found = load_demonstrations(InMemory(rows=({"messages": [ASK, ANSWER]},), eval_rows=({"messages": [ASK, ANSWER]},)))
    assert found.held_out.items == found.train.items == [{"prompt": [ASK], "completion": [ANSWER]}]
