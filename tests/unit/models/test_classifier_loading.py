"""Classifiers are loaded as what they are, or refused with what to do; a new head claims no reward of anything."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.classifiers import lay_down
from oncurve.errors import ModelError
from oncurve.models import save
from oncurve.models.classifiers.load import load_classifier

LABELS = {0: "bad", 1: "fair", 2: "good"}


def refusal(folder: Path, head: str = "outcome", **settings: object) -> str:
    with pytest.raises(ModelError) as caught:
        load_classifier(str(folder), head, device="cpu", **settings)
    return str(caught.value)


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
