"""Completions that are interrupted and continued by other weights: each token has the log-prob of its own weights."""

from itertools import count

import pytest
import torch

from fakes.tiny_policy import VOCABULARY, tiny_model
from fakes.tolerance import about
from oncurve.models import LocalWeights
from oncurve.randomness import continued_keys, row_keys, uniform_at
from oncurve.rollout import InProcessEngine, Sampling, was_interrupted
from oncurve.types import Completion, Group, Prompt

LENGTH, CUT = 12, 5
PROMPTS = [Prompt(number, "", (number % VOCABULARY, 3, 1)) for number in range(5)]


def interrupted_after(polls: int, engine: InProcessEngine) -> None:
    calls = count(1)
    engine.interrupted = lambda: next(calls) == polls


def logprobs(seed: int, prompt: Prompt, completion: Completion) -> list[float]:
    ids = torch.tensor([prompt.ids + completion.ids])
    with torch.no_grad():
        table = torch.log_softmax(tiny_model(seed=seed).module(ids)[0].double(), -1)
    first = len(prompt.ids)
    return [float(table[first + at - 1, token]) for at, token in enumerate(completion.ids)]


@pytest.mark.parametrize("at_once", [256, 6])
def test_each_token_has_the_log_prob_of_the_weights_that_sampled_it(at_once: int) -> None:
    sampling = Sampling(group_size=3, max_new_tokens=LENGTH, max_concurrent=at_once)
    engine = InProcessEngine(sampling, seed=5, eos_ids=(2,))
    versions = [LocalWeights(tiny_model(seed=seed), seed) for seed in range(3)]
    engine.follow(versions[0])
    interrupted_after(CUT, engine)
    groups = engine.generate(PROMPTS, 4)
    begun = [row for group in groups for row in group.completions]
    lengths = {len(row.ids) for row in begun if was_interrupted(row, sampling)}
    assert lengths == ({CUT} if at_once == 256 else {CUT, 0})
    assert any(row.ended == "eos" for row in begun)
    for version in versions[1:]:
        engine.follow(version)
        interrupted_after(4 if version.version == 1 else -1, engine)
        groups = engine.continued(groups, 4)
    sampled = {(group.prompt.id, row.sample_index) for group in groups for row in group.completions}
    assert sampled == {(prompt.id, index) for prompt in PROMPTS for index in range(3)}
    mixed = 0
    for group in groups:
        for row in group.completions:
            assert not was_interrupted(row, sampling)
            assert row.policy_version == 0
            assert 2 not in row.ids[:-1]
            own = [logprobs(seed, group.prompt, row) for seed in range(3)]
            cuts = [0, CUT, CUT + 4, LENGTH]
            if at_once == 256:
                right = [own[seed][cuts[seed] : cuts[seed + 1]] for seed in range(3)]
                assert list(row.logprobs) == about([value for part in right for value in part], torch.float64)
                mixed += len(row.ids) > CUT
            for at, value in enumerate(row.logprobs):
                assert any(value == about(found[at], torch.float64) for found in own)
    assert mixed or at_once == 6


def test_a_completion_that_nothing_interrupts_is_what_it_was() -> None:
    sampling = Sampling(group_size=3, max_new_tokens=LENGTH)
    found: list[list[Group]] = []
    for interrupted in (None, lambda: False):
        engine = InProcessEngine(sampling, seed=5)
        engine.interrupted = interrupted
        engine.follow(LocalWeights(tiny_model(), 0))
        found.append(engine.generate(PROMPTS, 4))
    assert found[0] == found[1]


def test_a_continuation_has_random_numbers_of_its_own() -> None:
    keys = row_keys(1, 2, torch.arange(50), torch.zeros(50, dtype=torch.int64))
    positions = torch.arange(20)[:, None]
    numbers = [uniform_at(keys, positions)]
    numbers += [uniform_at(continued_keys(keys, torch.full((50,), written)), positions) for written in (0, 1, 7)]
    assert torch.cat(numbers).unique().numel() == 4 * 20 * 50
