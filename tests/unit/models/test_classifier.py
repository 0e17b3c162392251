"""Networks that score text: their scores are transformers' own, for any neighbours in the batch."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, BertForSequenceClassification, LlamaForSequenceClassification

from fakes.classifiers import LONGEST, TRIMMING, byte_tokenizer, classifier, lay_down, lay_down_bert
from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ModelError
from oncurve.models import save
from oncurve.models.classifiers.classifier import Classifier, OverlongError, log_odds
from oncurve.models.classifiers.load import load_classifier

PAIRS = table("classifier", "pairs")
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


@pytest.mark.parametrize(("completion", "ends", "tokens"), table("classifier", "the_token_of_a_step"))
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
    ("completion", "ends", "written"), table("classifier", "steps_are_found_in_what_the_template_made_of_them")
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
    with pytest.raises(ModelError, match=r"has no chat template.*plain strings \(of a run: data\.chat = \"never\"\)"):
        model.encode(ASKED, "4")


LABELS = {0: "bad", 1: "fair", 2: "good"}


def refusal(folder: Path, head: str = "outcome", **settings: object) -> str:
    return message_of(ModelError, load_classifier, str(folder), head, device="cpu", **settings)


def test_a_label_that_is_needed_or_unknown_is_asked_for_with_the_list(tmp_path: Path) -> None:
    folder = lay_down(tmp_path, labels=LABELS)
    listed = "set rewards.label to one of: 0 (bad), 1 (fair), 2 (good)"
    assert refusal(folder, section="rewards").endswith(f"has 3 labels, and none is chosen as the reward; {listed}")
    assert refusal(folder, section="rewards", label="godo").endswith(f"has no label 'godo'; {listed}")
    assert "has no label '3'" in refusal(folder, label="3")


def test_two_labels_of_an_outcome_model_have_no_natural_winner(tmp_path: Path) -> None:
    assert "has 2 labels, and none is chosen as the reward" in refusal(lay_down(tmp_path, labels=2))


def test_a_language_model_is_no_reward_model_until_it_is_trained(tmp_path: Path) -> None:
    folder = lay_down(tmp_path, "causal")
    said = refusal(folder)
    assert "(LlamaForCausalLM) is not a sequence classifier, so it is no reward model" in said
    assert said.endswith("train one with: oncurve reward-model train")
    assert "is not a token classifier" in refusal(folder, "process")


@pytest.mark.parametrize("head", ["outcome", "process"])
def test_a_new_head_on_a_language_model_begins_at_zero(tmp_path: Path, head: str) -> None:
    folder = lay_down(tmp_path, "causal")
    model = load_classifier(str(folder), head, device="cpu", new_head=True)
    texts = [model.encode("2+2\n", "4\n#### 4", (2, 8) if head == "process" else ())]
    assert model.score(texts) == ([[0.0]] if head == "outcome" else [[0.5, 0.5]])
    kept = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.module.get_input_embeddings().weight, kept)


def test_a_new_process_model_names_its_labels_and_loads_again_as_one(tmp_path: Path) -> None:
    made = load_classifier(str(lay_down(tmp_path / "causal", "causal")), "process", device="cpu", new_head=True)
    torch.nn.init.normal_(made.module.score.weight)
    save(made.module, made.tokenizer, tmp_path / "made")
    again = load_classifier(str(tmp_path / "made"), "process", label="right", device="cpu")
    assert again.module.config.id2label == {0: "wrong", 1: "right"}
    text = made.encode("2+2\n", "4", (1,))
    assert again.score([text]) == made.score([text])


@pytest.mark.parametrize("new_head", [False, True])
def test_the_other_kind_of_classifier_is_refused(tmp_path: Path, new_head: bool) -> None:
    steps, whole = lay_down(tmp_path / "steps", "process"), lay_down(tmp_path / "whole")
    assert "is a token classifier: a reward model of steps, and not of outcomes" in refusal(steps, new_head=new_head)
    said = refusal(whole, "process", new_head=new_head)
    assert "is a sequence classifier: a reward model of outcomes, and not of steps" in said


@pytest.mark.parametrize("lost", ["score.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_missing_are_an_error(tmp_path: Path, lost: str) -> None:
    folder = lay_down(tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights[lost]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert f"the weights lack {lost}; a reward model with random parts cannot score" in refusal(folder)
    assert f"the weights lack {lost}" in refusal(folder, new_head=True)


def test_what_is_no_model_is_named_with_its_setting(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing" / "there").endswith("no such directory")
    with pytest.raises(ModelError, match=r"rewards\.path is not set"):
        load_classifier("", "outcome", section="rewards")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(tmp_path / "empty")


def test_the_shorter_of_two_lengths_holds(tmp_path: Path) -> None:
    folder = lay_down(tmp_path, longest=40)
    longest = [load_classifier(str(folder), "outcome", device="cpu", max_length=n).max_length for n in (None, 7, 900)]
    assert longest == [40, 7, 40]
