"""Prompts become the ids the model was trained to be asked with."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from fakes.project import words_tokenizer
from oncurve.base.errors import ModelError
from oncurve.models import render, tiny
from oncurve.models.loading import chat_templates as chat

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def qwen(test_data):
    return AutoTokenizer.from_pretrained(test_data / "tokenizers" / "qwen2", local_files_only=True)


def test_a_string_is_tokenised_as_it_is(qwen):
    ids = render(qwen, "Once upon a time")
    assert all(isinstance(token, int) for token in ids)
    assert qwen.decode(ids) == "Once upon a time"


def test_messages_go_through_the_template_and_end_with_the_opening_of_the_answer(qwen):
    ids = render(qwen, MESSAGES)
    assert qwen.decode(ids).startswith(RENDERED)
    assert ids[0] == qwen.convert_tokens_to_ids("<|im_start|>")


def test_messages_without_a_template_are_refused():
    with pytest.raises(ModelError, match="no chat template"):
        render(words_tokenizer(), MESSAGES)


def test_what_the_template_refuses_is_said(qwen):
    original = qwen.chat_template
    qwen.chat_template = "{{ raise_exception('roles must alternate') }}"
    try:
        with pytest.raises(ModelError, match="roles must alternate"):
            render(qwen, MESSAGES)
    finally:
        qwen.chat_template = original


def test_a_bos_the_tokenizer_puts_is_kept_and_never_doubled(test_data):
    tokenizer = AutoTokenizer.from_pretrained(test_data / "models" / "stories260k", local_files_only=True)
    assert render(tokenizer, "Once") == tuple(tokenizer("Once")["input_ids"])


LOOP = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3


@pytest.mark.parametrize("template", [LOOP, LOOP.replace("{% endfor %}", "x{% endfor %}", 1), "{{ 1 // 0 }}"])
def test_a_template_that_never_ends_is_refused_within_its_time(template, monkeypatch):
    before = threading.active_count()
    monkeypatch.setattr(chat, "TEMPLATE_SECONDS", 0.3)
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    tokenizer.chat_template = template
    words = "refuses these messages" if "//" in template else "took longer for one prompt than 0.3 seconds"
    for _ in range(2):
        with pytest.raises(ModelError, match=words):
            render(tokenizer, [{"role": "user", "content": "2+2="}])
    assert threading.active_count() <= before  # what looped has ended
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert render(tokenizer, [{"role": "user", "content": "2+2="}])


@pytest.mark.parametrize("power", ["{{ 10**(10**9) }}", "{% set x = 2 ** 10 %}{{ messages[0].content }}"])
def test_a_template_whose_powers_no_thread_could_end_is_refused(power):
    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    for template in (power, {"default": power}):
        tokenizer.chat_template = template
        with pytest.raises(ModelError, match=r"chat template computes powers \(\*\*\)"):
            render(tokenizer, [{"role": "user", "content": "2+2="}])
    tokenizer.chat_template = "**{{ messages[0].content }}**"  # text, not an operator
    assert render(tokenizer, [{"role": "user", "content": "2+2="}])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is one of Linux")
@pytest.mark.slow
def test_a_template_that_makes_something_huge_is_refused_before_it_takes_the_memory():
    """In a process of its own: freed memory that this one keeps would be taken first, whatever the limit."""
    done = subprocess.run(
        [sys.executable, "-m", "fakes.huge_templates"],
        cwd=Path(__file__).parents[2],  # tests/
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
