"""Groups that come in while others are under way: every completion is what it would be alone, and no row is idle."""

import pytest
import torch

from fakes.architectures import VOCABULARY, architecture
from fakes.scripted import ByteTokenizer, TableModel
from fakes.tiny_policy import TinyLM
from fakes.tolerance import about
from oncurve.models import GenericModel, LocalWeights, TransformersModel
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt
from oracles import plain_rollout

EOS = (58, 59, 60)
LENGTHS = (3, 9, 4, 4, 1, 12, 6, 2)


def fast(name, dtype=torch.float64):
    return TransformersModel(architecture(name, dtype))


def prompts_of(vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS]
    return [Prompt(number, "", tuple(row)) for number, row in enumerate(ids)]


def rollout(model, sampling, prompts, eos_ids=EOS, tokenizer=None, **more):
    engine = InProcessEngine(sampling, tokenizer, eos_ids, seed=2, **more)
    engine.follow(LocalWeights(model, 0))
    return engine.generate(prompts, draw=1)


def of(groups, what):
    return [[getattr(completion, what) for completion in group.completions] for group in groups]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_tokens_do_not_depend_on_how_many_rows_there_are(name):
    prompts, sampling = prompts_of(), Sampling(group_size=3, max_new_tokens=14)
    whole = rollout(fast(name), sampling, prompts)
    assert {c.ended for group in whole for c in group.completions} == {"eos", "length"}
    for rows in (1, 3, 7, 9):
        few = rollout(fast(name), sampling.model_copy(update={"max_concurrent": rows}), prompts)
        assert of(few, "ids") == of(whole, "ids")
        assert of(few, "ended") == of(whole, "ended")
        for one, other in zip(of(few, "logprobs"), of(whole, "logprobs"), strict=True):
            for row, same in zip(one, other, strict=True):
                assert row == pytest.approx(same, abs=1e-10)


@pytest.mark.parametrize("rows", [3, 7, 100])
@pytest.mark.parametrize("path", ["fast", "generic"])
def test_tokens_are_those_of_a_plain_loop_over_the_whole_text(path, rows):
    module = architecture("mistral", torch.float64) if path == "fast" else TinyLM(VOCABULARY).double()
    model = TransformersModel(module) if path == "fast" else GenericModel(module)
    prompts, sampling = prompts_of(), Sampling(group_size=2, max_new_tokens=10, max_concurrent=rows)
    for group in rollout(model, sampling, prompts):
        for index, completion in enumerate(group.completions):
            key = (2, 1, group.prompt.id, index)
            expected = plain_rollout.complete_whole(module, group.prompt.ids, key, set(EOS), 10, 1.0)
            assert (list(completion.ids), completion.ended) == (expected[0], expected[2])
            assert completion.logprobs == about(expected[1])


@pytest.mark.parametrize("rows", [4, 8, 20])
def test_rows_with_limits_stop_strings_and_eos_all_end_as_they_do_alone(rows):
    table = torch.full((257, 257), -torch.inf)
    letters = list(b"abcde")
    table[:, letters] = torch.randn(257, 5, generator=torch.Generator().manual_seed(0))
    prompts = [Prompt(number, "", tuple(text.encode())) for number, text in enumerate(["ab", "c", "dd", "a", "e"] * 3)]
    sampling = Sampling(group_size=4, max_new_tokens=12, stop=("ca", "bb"), max_concurrent=rows)

    def limit(prompt_id, sample_index):
        return 3 + (5 * prompt_id + sample_index) % 11

    def complete(some, rows):
        few = sampling.model_copy(update={"max_concurrent": rows})
        return rollout(TableModel(table), few, some, (ord("e"),), ByteTokenizer(), limits=limit)

    together = complete(prompts, rows)
    assert together == [complete([prompt], 4)[0] for prompt in prompts]
    completions = [completion for group in together for completion in group.completions]
    assert {completion.ended for completion in completions} == {"eos", "stop", "length"}
    cut = [(c, limit(g.prompt.id, c.sample_index)) for g in together for c in g.completions if c.ended == "length"]
    assert all(len(completion.ids) == min(12, most) for completion, most in cut)
