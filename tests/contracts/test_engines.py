"""What every rollout engine promises, whatever it runs on."""

import math

import pytest

from fakes.scripted import ByteTokenizer, letters_model
from oncurve.base.errors import DataError
from oncurve.models import LocalWeights
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt

SAMPLING = Sampling(group_size=3, max_new_tokens=10, temperature=0.8, stop=("ca",))
EOS = ord("e")
PROMPTS = [Prompt(id=number, text=text, ids=tuple(text.encode())) for number, text in enumerate(["ab", "c", "dd"])]


def make_engine(seed: int = 0, version: int = 0) -> InProcessEngine:
    engine = InProcessEngine(SAMPLING, ByteTokenizer(), eos_ids=(EOS,), seed=seed)
    engine.follow(LocalWeights(letters_model(b"abcde"), version))
    return engine


def test_every_completion_is_whole():
    for group in make_engine(version=6).generate(PROMPTS, draw=0):
        assert [completion.sample_index for completion in group.completions] == [0, 1, 2]
        for completion in group.completions:
            assert completion.policy_version == 6
            assert 1 <= len(completion.ids) == len(completion.logprobs) <= 10
            assert all(math.isfinite(logprob) and logprob <= 0 for logprob in completion.logprobs)
            assert isinstance(completion.ids[0], int)
            assert isinstance(completion.logprobs[0], float)


def test_each_ending_means_what_it_says():
    sampling = SAMPLING.model_copy(update={"group_size": 64})
    endings = set()
    for group in make_engine().generate(PROMPTS, draw=0, sampling=sampling):
        for completion in group.completions:
            endings.add(completion.ended)
            whole = bytes(completion.ids).decode()
            assert (completion.ended == "eos") == (completion.ids[-1] == EOS)
            assert EOS not in completion.ids[:-1]
            assert "ca" not in completion.text
            assert (completion.ended == "stop") == whole.endswith("ca")
            assert completion.text == {"eos": whole[:-1], "stop": whole[:-2], "length": whole}[completion.ended]
            assert completion.ended != "length" or len(completion.ids) == 10
    assert endings == {"eos", "stop", "length"}


def test_the_same_call_gives_the_same_groups_and_another_draw_or_seed_does_not():
    engine = make_engine()
    first = engine.generate(PROMPTS, draw=0)
    other_draw = engine.generate(PROMPTS, draw=1)
    assert engine.generate(PROMPTS, draw=0) == first == make_engine().generate(PROMPTS, draw=0)
    assert [group.completions for group in other_draw] != [group.completions for group in first]
    assert make_engine(seed=1).generate(PROMPTS, draw=0) != first


def test_a_prompt_gets_the_samples_that_the_caller_counted_wherever_it_is_decoded():
    one, other = PROMPTS[:2]
    together = make_engine().generate([one, other, one], draw=2)
    apart = make_engine().generate([one], draw=2, first_samples=[3])
    assert apart == together[2:]
    assert together == make_engine().generate([one, other, one], draw=2, first_samples=[0, 0, 3])
    assert [completion.sample_index for completion in apart[0].completions] == [3, 4, 5]
    assert [c.ids for c in together[2].completions] != [c.ids for c in together[0].completions]


def test_a_closed_engine_may_be_closed_again_and_begins_again_when_it_is_followed():
    engine = make_engine()
    before = engine.generate(PROMPTS, draw=0)
    engine.close()
    engine.close()
    engine.follow(LocalWeights(letters_model(b"abcde"), 0))
    assert engine.generate(PROMPTS, draw=0) == before


def test_greedy_sampling_gives_every_sample_alike_and_leaves_the_engines_settings_alone():
    engine = make_engine()
    before = engine.generate(PROMPTS, draw=0)
    greedy = engine.generate(PROMPTS, draw=0, sampling=Sampling(group_size=2, max_new_tokens=5, temperature=0))
    assert all(group.completions[0].ids == group.completions[1].ids for group in greedy)
    assert engine.generate(PROMPTS, draw=0) == before


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(DataError, match="no tokens"):
        make_engine().generate([Prompt(9, "", ())], draw=0)


def test_each_group_is_handed_over_once_and_whole():
    handed = {}
    groups = make_engine().generate(PROMPTS, draw=0, on_group=lambda index, group: handed.setdefault(index, group))
    assert [handed[index] for index in range(len(PROMPTS))] == groups
    assert len(handed) == len(PROMPTS)


def test_a_group_is_handed_over_while_longer_ones_still_grow():
    order = []
    sampling = Sampling(group_size=1, max_new_tokens=60, eos_ids=())
    prompts = [prompt for prompt in PROMPTS for _ in range(8)]
    groups = make_engine().generate(prompts, 0, sampling, lambda index, group: order.append(index))
    lengths = [len(group.completions[0].ids) for group in groups]
    assert order == sorted(range(len(prompts)), key=lambda index: (lengths[index], index))
    assert len(set(lengths)) > 3


def test_what_the_receiver_of_a_group_raises_ends_the_rollout():
    def refuse(index, group):
        raise KeyError(index)

    with pytest.raises(KeyError):
        make_engine().generate(PROMPTS, draw=0, on_group=refuse)
