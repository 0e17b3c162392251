import string

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fakes.solutions import STYLES, solution
from oncurve.models.tiny import path
from oncurve.tasks.arithmetic import is_correct, problems


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(path(), local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(path(), local_files_only=True).eval()


def test_it_is_small_and_whole():
    files = {file.name: file.stat().st_size for file in path().iterdir() if file.is_file()}
    needed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert needed <= set(files)
    assert sum(files.values()) <= 5_000_000


def test_text_comes_back_exactly(tokenizer):
    texts = [
        string.ascii_letters + string.digits + string.punctuation + " \n",
        "  two  spaces \n\n",
        "has has MiaMia 12",
    ]
    for item in problems("train", 20):
        texts += [item.prompt, *(solution(item, style) for style in STYLES)]
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_greedily_it_solves_a_fifth_to_two_fifths_of_held_out_problems(model, tokenizer):
    asked = problems("test", 256)
    inputs = tokenizer([item.prompt for item in asked], return_tensors="pt", padding=True, padding_side="left")
    with torch.no_grad():
        out = model.generate(**inputs, do_sample=False, max_new_tokens=72)
    texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = sum(is_correct(text, item) for text, item in zip(texts, asked, strict=True))
    assert 0.2 <= right / len(asked) <= 0.4
    ended = (out[:, inputs["input_ids"].shape[1] :] == tokenizer.eos_token_id).any(1)
    assert ended.float().mean() > 0.98
