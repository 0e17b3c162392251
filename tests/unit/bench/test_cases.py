import statistics
from dataclasses import replace

import pytest
from bench.cases import CELLS, SYSTEMS, Case, is_constant, length
from bench.systems.rewards import hashed

NATURAL = CELLS["6.5M natural"]


def test_a_case_survives_json() -> None:
    case = replace(NATURAL, settings=(("moments", "bfloat16"),))
    assert Case.from_json(case.to_json()) == case
    assert case.under("oncurve-lean").options == {"moments": "bfloat16", "masters": "split"}


def test_fixed_lengths_are_the_longest() -> None:
    assert CELLS["6.5M fixed"].lengths_of_step(3) == [[128] * 8] * 4


def test_natural_lengths_are_log_normal_and_the_same_for_every_system() -> None:
    drawn = [length(NATURAL, prompt, sample) for prompt in range(500) for sample in range(8)]
    assert statistics.median(drawn) == pytest.approx(0.35 * 128, rel=0.05)
    assert 0.02 < sum(n == 128 for n in drawn) / len(drawn) < 0.06
    assert min(drawn) >= 1
    assert length(NATURAL.under("trl-fp32"), 7, 3) == length(NATURAL, 7, 3)


def test_steps_take_prompts_in_a_row() -> None:
    assert NATURAL.lengths_of_step(2)[1] == [length(NATURAL, 9, sample) for sample in range(8)]


def test_constant_groups_are_two_of_any_five() -> None:
    pattern = [is_constant(NATURAL, prompt) for prompt in range(100)]
    assert all(sum(pattern[start : start + 5]) == 2 for start in range(95))
    assert not any(is_constant(CELLS["6.5M fixed"], prompt) for prompt in range(100))


def test_rewards_differ_between_completions_but_not_in_constant_groups() -> None:
    rewards = hashed(["", "", ""], [[1, 2], [1, 3], [1, 2]], [False, False, True])
    assert rewards[0] != rewards[1]
    assert rewards[2] == 0.5
    assert all(0 <= reward < 1 for reward in rewards)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_every_system_has_a_module(name: str) -> None:
    from importlib.util import find_spec

    assert find_spec(SYSTEMS[name].module) is not None
