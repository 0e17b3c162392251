"""Groups that come in while others are under way: every completion is what it would be alone, and no row is idle."""

import pytest
import torch

from fakes.architectures import VOCABULARY, architecture
from fakes.scripted import ByteTokenizer, TableModel, letters_model
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
    model = letters_model(b"abcde")
    prompts = [Prompt(number, "", tuple(text.encode())) for number, text in enumerate(["ab", "c", "dd", "a", "e"] * 3)]
    sampling = Sampling(group_size=4, max_new_tokens=12, stop=("ca", "bb"), max_concurrent=rows)

    def limit(prompt_id, sample_index):
        return 3 + (5 * prompt_id + sample_index) % 11

    def complete(some, rows):
        few = sampling.model_copy(update={"max_concurrent": rows})
        return rollout(model, few, some, (ord("e"),), ByteTokenizer(), limits=limit)

    together = complete(prompts, rows)
    assert together == [complete([prompt], 4)[0] for prompt in prompts]
    completions = [completion for group in together for completion in group.completions]
    assert {completion.ended for completion in completions} == {"eos", "stop", "length"}
    cut = [(c, limit(g.prompt.id, c.sample_index)) for g in together for c in g.completions if c.ended == "length"]
    assert all(len(completion.ids) == min(12, most) for completion, most in cut)


def test_groups_come_in_as_rows_become_free():
    table = torch.randn(9, 9, generator=torch.Generator().manual_seed(0))
    model, lengths = TableModel(table), {0: 40, 1: 4, 2: 4, 3: 20, 4: 4, 5: 16, 6: 8}
    prompts = [Prompt(number, "", (number,)) for number in lengths]
    sampling = Sampling(group_size=2, max_new_tokens=40, max_concurrent=4)
    groups = rollout(model, sampling, prompts, (), limits=lambda prompt_id, _: lengths[prompt_id])
    assert [len(group.completions[0].ids) for group in groups] == list(lengths.values())
    assert model.prefilled == [2, 1, 1, 1, 1, 1]
    # Beside group 0's 40 tokens follow one another 4 + 4 + 20 + 4 and 8 of group 5's 16; the rest goes with group 6.
    # A group's first token comes from its prefill: in the step before it only the other two rows are run.
    joins = (4, 8, 28, 32, 40)
    assert model.stepped == [2 if step in joins else 4 for step in range(1, 48)]


def test_a_group_larger_than_the_rows_goes_alone():
    model = TableModel(torch.randn(9, 9, generator=torch.Generator().manual_seed(0)))
    prompts = [Prompt(number, "", (number,)) for number in range(3)]
    rollout(model, Sampling(group_size=5, max_new_tokens=3, max_concurrent=2), prompts, ())
    assert model.prefilled == [1, 1, 1]
    assert set(model.stepped) == {5}


def test_the_same_settings_give_the_same_bits():
    prompts, sampling = prompts_of(), Sampling(group_size=3, max_new_tokens=14, max_concurrent=7)
    results = [rollout(fast("qwen2", torch.bfloat16), sampling, prompts) for _ in range(2)]
    assert results[0] == results[1]


@pytest.mark.parametrize("stop", [(), ("ab",)])
def test_nothing_is_left_over_between_two_rollouts(stop):
    sampling = Sampling(group_size=2, max_new_tokens=9, max_concurrent=4, stop=stop)
    engine = InProcessEngine(sampling, ByteTokenizer(), (), seed=2)
    engine.follow(LocalWeights(letters_model(b"abc"), 0))
    prompts = [Prompt(number, "", (97,)) for number in range(6)]
    first, _, again = (engine.generate(prompts, draw=draw) for draw in (0, 1, 0))
    assert first == again
