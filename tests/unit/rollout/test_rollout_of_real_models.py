"""The engine over real networks: what it records is what the network says when it is shown the whole text."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oncurve.models import LocalWeights
from oncurve.models.causal import CausalModel
from oncurve.models.generic import GenericModel
from oncurve.models.network import TransformersModel
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt
from oracles.plain_forward import row_logits

PATHS = {"generic": GenericModel, "fast": TransformersModel}


def teacher_forced(module: torch.nn.Module, group: Group, temperature: float) -> list[torch.Tensor]:
    """log softmax(logits / temperature) of each completion's tokens, by a plain forward of one row at a time."""
    rows = [torch.tensor(completion.ids) for completion in group.completions]
    with torch.no_grad():
        logits = [row_logits(module, torch.tensor(group.prompt.ids), ids) for ids in rows]
    return [
        torch.log_softmax(at / temperature, dim=-1).gather(1, ids[:, None]).squeeze(1)
        for at, ids in zip(logits, rows, strict=True)
    ]


def rollout(model: CausalModel, prompts: list[Prompt], sampling: Sampling, tokenizer=None, eos_ids=(2,)) -> list[Group]:
    engine = InProcessEngine(sampling, tokenizer, eos_ids, seed=3)
    engine.follow(LocalWeights(model, 0))
    return engine.generate(prompts, draw=1)


@pytest.fixture(scope="module")
def stories(test_data):
    folder = test_data / "models" / "stories260k"
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("path", PATHS)
def test_greedy_text_begins_as_the_authors_own_program_wrote_it(stories, test_data, path):
    module, tokenizer = stories
    sampling = Sampling(group_size=1, max_new_tokens=100, temperature=0)
    group = rollout(PATHS[path](module), [Prompt(0, "", (1,))], sampling, tokenizer)[0]
    expected = (test_data / "models" / "stories260k" / "expected_greedy_200.txt").read_text().rstrip("\n")
    text = group.completions[0].text
    assert len(text) > 250
    assert expected.startswith(text)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_recorded_logprobs_are_the_teacher_forced_ones(stories, path, temperature, dtype, tolerance):
    module, tokenizer = stories
    module = copy.deepcopy(module).to(dtype)
    texts = ["Once upon a time", "Lily", "The big dog and the cat went to the park. They"]
    prompts = [Prompt(number, text, (1, *tokenizer.encode(text))) for number, text in enumerate(texts)]
    sampling = Sampling(group_size=4, max_new_tokens=32, temperature=temperature, max_concurrent=8, stop=("big",))
    for group in rollout(PATHS[path](module), prompts, sampling, tokenizer):
        for completion, expected in zip(group.completions, teacher_forced(module, group, temperature), strict=True):
            recorded = torch.tensor(completion.logprobs, dtype=dtype)
            # float32 rounding grows with the log-prob: two plain forwards of other shapes differ as much.
            torch.testing.assert_close(recorded, expected, atol=tolerance, rtol=tolerance)
            assert (recorded - expected).abs().mean() < tolerance
