"""`data.chat_template_kwargs`: variables of the model's chat template reach every prompt."""

import re
from typing import Any

import pytest
from transformers import AutoTokenizer

from oncurve.config import load_config
from oncurve.data import Files, Rows, open_prompts
from oncurve.errors import ConfigError, ModelError
from oncurve.models import tiny

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


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["data.chat_template_kwargs={tokenize=true}"], "tokenize is no variable of a template"),
        (["data.chat_template_kwargs.x=1", "data.chat=never"], r'data\.chat: "never" renders no chat template'),
        (["data.chat_template_kwargs=5"], r"data\.chat_template_kwargs"),
        (["data.enable_thinking=false"], r"did you mean data\.chat_template_kwargs \(\{enable_thinking=false\}\)\?"),
    ],
)
def test_settings_that_cannot_be(words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load_config(None, words)
