"""Chats as a classifier was taught them: through its own template, with steps found in what that made of them."""

from pathlib import Path
from typing import Any

import pytest

from fakes.classifiers import TRIMMING, byte_tokenizer, classifier
from oncurve.errors import ModelError
from oncurve.models.classifiers.classifier import Classifier

ASKED = ({"role": "user", "content": "2+2?"},)


def chatting(folder: Path, template: str = TRIMMING, head: Any = "process") -> Classifier:
    return classifier(folder, head, tokenizer=byte_tokenizer(), template=template)


def said(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "assistant", "content": text},)


def read(model: Classifier, prompt: Any, completion: Any, ends: tuple[int, ...]) -> list[str]:
    """The laid-out text up to each step's token, that token included."""
    encoded = model.encode(prompt, completion, ends)
    return [model.tokenizer.decode(encoded.ids[: end + 1]) for end in encoded.ends]


def test_a_chat_is_laid_out_by_the_template_and_nothing_is_put_behind_it(tmp_path: Path) -> None:
    model = chatting(tmp_path, head="outcome")
    wanted = "<|user|>2+2?<|end|>\n<|assistant|>4<|end|>\n"
    for prompt, completion in ((ASKED, said(" 4\n")), (ASKED, " 4\n"), ("2+2?", said("4")), ((), (*ASKED, *said("4")))):
        assert model.tokenizer.decode(model.encode(prompt, completion).ids) == wanted
    assert model.tokenizer.decode(model.encode("2+2?", "4").ids) == "2+2?4<eos>"


HEAD = "<|user|>2+2?<|end|>\n<|assistant|>"


@pytest.mark.parametrize(
    ("completion", "ends", "written"),
    [
        ("1+3\n4", (4, 5), ["1+3", "1+3\n4"]),
        ("\n 1+3\n4\n", (6, 8), ["1+3", "1+3\n4"]),
        ("1+3\n\n4\n\n\n", (5, 9), ["1+3", "1+3\n\n4"]),
        ("end", (3,), ["end"]),
        ("|", (1,), ["|"]),
        ("user", (4,), ["user"]),
        ("2+2?", (4,), ["2+2?"]),
        ("4\n4", (2, 3), ["4", "4\n4"]),
        ("é\n✓", (2, 3), ["é", "é\n✓"]),
    ],
)
def test_steps_are_found_in_what_the_template_made_of_them(
    tmp_path: Path, completion: str, ends: tuple[int, ...], written: list[str]
) -> None:
    model = chatting(tmp_path)
    for spelled in (completion, said(completion)):
        assert read(model, ASKED, spelled, ends) == [HEAD + text for text in written]


def test_a_template_that_changes_a_completion_is_refused_only_where_its_steps_are_scored(tmp_path: Path) -> None:
    model = chatting(tmp_path, "{% for m in messages %}{{ m.content | upper }};{% endfor %}")
    assert model.tokenizer.decode(model.encode(ASKED, "four").ids) == "2+2?;FOUR;"
    with pytest.raises(ModelError, match=r"the chat template changes a completion.*use a process model"):
        model.encode(ASKED, "four", (4,))


def test_a_chat_for_a_model_without_a_template_is_refused_with_the_mend(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    with pytest.raises(ModelError, match=r"has no chat template.*for chats or, with data\.chat = \"never\""):
        model.encode(ASKED, "4")
