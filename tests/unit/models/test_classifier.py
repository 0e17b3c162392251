"""Networks that score text: their scores are transformers' own, for any neighbours in the batch."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, BertForSequenceClassification, LlamaForSequenceClassification

from fakes.classifiers import LONGEST, byte_tokenizer, classifier, lay_down, lay_down_bert
from oncurve.models.classifiers.classifier import Classifier, OverlongError, log_odds
from oncurve.models.classifiers.load import load_classifier

PAIRS = [
    ("7*8=", "56"),
    ("Mia has 7 bags of 8 beads", ". She wins 5"),
    ("", "4"),
    ("2+2=", ""),
    ("9-", "8\n=1\n#### 1"),
]
STEPS = [("7*8+31\n", "7*8=56\n56+31=87\n#### 87", (7, 16, 23)), ("2+2\n", "4", (1,)), ("3\n", "1+2\n3", (4, 5))]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return classifier(tmp_path_factory.mktemp("outcome"))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return classifier(tmp_path_factory.mktemp("process"), "process")


def alone(model: Classifier, ids: tuple[int, ...]) -> Tensor:
    """transformers' own logits for one text, without a batch."""
    with torch.no_grad():
        return model.module(input_ids=torch.tensor([ids])).logits[0]


def test_rewards_are_the_logits_of_transformers_for_each_text_alone(tmp_path: Path, outcome: Classifier) -> None:
    texts = [outcome.encode(prompt, completion) for prompt, completion in PAIRS]
    folder = lay_down(tmp_path / "model")  # the same weights, loaded by transformers alone
    plain = LlamaForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wanted = []
    for prompt, completion in PAIRS:
        ids = [*tokenizer(prompt + completion)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            wanted.append(float(plain(input_ids=torch.tensor([ids])).logits[0, 0]))
    assert [value for (value,) in outcome.score(texts)] == pytest.approx(wanted, abs=1e-5)
    assert max(wanted) - min(wanted) > 0.1


def test_a_bert_reads_a_text_as_its_tokenizer_frames_it(tmp_path: Path) -> None:
    folder = lay_down_bert(tmp_path)
    model = load_classifier(str(folder), "outcome", device="cpu")
    plain = BertForSequenceClassification.from_pretrained(folder)
    texts = [model.encode("a b ", "c"), model.encode("d e f g h ", "i j"), model.encode("", "a")]
    assert [text.ids for text in texts] == [(2, 4, 5, 6, 3), (2, 7, 8, 9, 10, 11, 12, 13, 3), (2, 4, 3)]
    with torch.no_grad():
        wanted = [float(plain(input_ids=torch.tensor([text.ids])).logits) for text in texts]
    assert [value for (value,) in model.score(texts)] == pytest.approx(wanted, abs=1e-5)


def test_the_likelihood_of_a_step_is_read_at_its_token(process: Classifier) -> None:
    texts = [process.encode(*each) for each in STEPS]
    wanted = [[float(alone(process, text.ids)[end].softmax(0)[1]) for end in text.ends] for text in texts]
    got = process.score(texts)
    assert [len(steps) for steps in got] == [3, 1, 2]
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("head", ["outcome", "process"])
def test_neighbours_and_the_size_of_batches_change_nothing(head: str, outcome: Classifier, process: Classifier) -> None:
    model = outcome if head == "outcome" else process
    texts = [model.encode(*each) for each in (PAIRS if head == "outcome" else STEPS)]
    whole = model.score(texts)
    for budget in (1, 40, 90):
        for mine, theirs in zip(model.score(texts, tokens_per_batch=budget), whole, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5)
    for text, value in zip(texts, whole, strict=True):
        assert model.score([text])[0] == pytest.approx(value, abs=1e-5)
    assert model.score([]) == []


def test_log_odds_of_one_label_among_several() -> None:
    logits = torch.tensor([[1.0, 2.0, -0.5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    chance = torch.softmax(logits, -1)
    for label in range(3):
        p = chance[:, label]
        torch.testing.assert_close(log_odds(logits, label), (p / (1 - p)).log())
    assert log_odds(logits, 0)[1].item() == pytest.approx(-math.log(2))
    assert log_odds(torch.tensor([[3.0]]), None).tolist() == [3.0]
    assert log_odds(torch.tensor([[1e4, -1e4]]), 0).tolist() == [2e4]


def test_a_text_that_is_too_long_is_refused_with_both_numbers(tmp_path: Path, outcome: Classifier) -> None:
    fits = "1" * (LONGEST - 2)  # and one token before it, one behind it
    assert len(outcome.encode("", fits).ids) == LONGEST
    with pytest.raises(OverlongError, match=f"reads {LONGEST} tokens, and the text has {LONGEST + 1}"):
        outcome.encode("1", fits)
    short = load_classifier(str(lay_down(tmp_path)), "outcome", max_length=5, device="cpu")
    assert len(short.encode("1+", "1").ids) == 5
    with pytest.raises(OverlongError, match="reads 5 tokens, and the text has 6"):
        short.encode("1+1", "1")


def written_at(model: Classifier, prompt: Any, completion: Any, ends: tuple[int, ...]) -> list[str]:
    """What each step's token writes."""
    encoded = model.encode(prompt, completion, ends)
    return [model.tokenizer.decode([encoded.ids[end]]) for end in encoded.ends]


@pytest.mark.parametrize(
    ("completion", "ends", "tokens"),
    [
        ("1+2\n3", (4, 5), "23"),
        ("1+2\n3", (3, 5), "23"),
        ("1+2\n\n \n3\n\n", (7, 10), "23"),
        ("  1+2 \n 3 ", (6, 10), "23"),
        ("1", (1,), "1"),
        ("1 beads now\n2", (12, 13), [" now", "2"]),
        ("Mia has 7", (3, 7, 9), ["Mia", " has ", "7"]),
    ],
)
def test_a_step_is_scored_at_the_token_of_its_last_visible_character(
    process: Classifier, completion: str, ends: tuple[int, ...], tokens: Any
) -> None:
    assert written_at(process, "9*9\n", completion, ends) == list(tokens)


def test_a_character_of_several_tokens_is_written_by_the_last(tmp_path: Path) -> None:
    model = classifier(tmp_path, "process", tokenizer=byte_tokenizer())
    encoded = model.encode("é", "√4\n2 ✓\nü", (3, 7, 8))
    assert len(encoded.ids) == 2 + 3 + 1 + 1 + 1 + 1 + 3 + 1 + 2 + 1
    assert encoded.ends == (5, 11, 14)
    (end,) = model.encode("", "√", (1,)).ends
    assert end == 2
