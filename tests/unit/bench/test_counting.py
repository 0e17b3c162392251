import pytest
from bench.cases import CELLS, Case
from bench.compare.counting import (
    Work,
    decode_seconds,
    ideal_seconds,
    prefill_flops,
    reference_flops,
    tokens_of,
    train_flops,
)
from bench.models import SIZES, Size

# One layer, hidden 4, two heads of 2 sharing one key-value head, intermediate 6, vocabulary 10.
TINY = Size(hidden=4, layers=1, heads=2, kv_heads=1, intermediate=6, vocabulary=10)
# N_b = 2·4·4 + 2·4·2 + 3·4·6 = 120, N_h = 40, a = 4·1·2·2 = 16
ONE_GROUP = Work(prompts=(3,), completions=((2, 1),), trained=(True,), kl=True)


def test_parameters_of_a_shape() -> None:
    assert (TINY.body_parameters, TINY.head_parameters) == (120, 40)


@pytest.mark.parametrize(("name", "millions"), [("6.5M", 6.5), ("38M", 38.0), ("494M", 494.0)])
def test_models_have_the_sizes_of_their_names(name: str, millions: float) -> None:
    size = SIZES[name]
    assert (size.body_parameters + size.head_parameters) / 1e6 == pytest.approx(millions, rel=0.01)


def test_prefill_counts_the_prompt_once_and_the_head_on_its_last_token() -> None:
    assert prefill_flops(TINY, ONE_GROUP) == 2 * 120 * 3 + 16 * 9 / 2 + 2 * 40


def test_training_counts_the_prompt_once_a_group() -> None:
    matrix = 6 * 120 * (3 + 3) + 6 * 40 * 3
    attended = 9 / 2 + (3 * 2 + 4 / 2) + (3 * 1 + 1 / 2)
    assert train_flops(TINY, ONE_GROUP) == pytest.approx(matrix + 3.5 * 16 * attended)
    assert reference_flops(TINY, ONE_GROUP) == pytest.approx(matrix / 3 + 16 * attended)


def test_a_dead_group_trains_nothing_and_no_kl_means_no_reference() -> None:
    constant = Work((3, 3), ((2, 1), (2, 1)), (True, False), kl=False)
    assert train_flops(TINY, constant) == train_flops(TINY, ONE_GROUP)
    assert reference_flops(TINY, constant) == 0


def test_decode_is_bound_by_memory_or_by_arithmetic() -> None:
    # One step: only the row of two tokens goes on. Bytes 2·(120 + 40) + kv 2·1·1·2·2 = 8 a token · (3 + 1).
    assert decode_seconds(TINY, ONE_GROUP, flops=1e30, bandwidth=1.0, weight_bytes=2) == 2 * 160 + 8 * 4
    assert decode_seconds(TINY, ONE_GROUP, flops=1.0, bandwidth=1e30, weight_bytes=2) == 2 * 160 + 16 * 4


def test_the_ideal_step_is_the_sum_of_its_phases() -> None:
    ideal = ideal_seconds(TINY, ONE_GROUP, flops=2.0, bandwidth=1e30, weight_bytes=2)
    flops = prefill_flops(TINY, ONE_GROUP) + reference_flops(TINY, ONE_GROUP) + train_flops(TINY, ONE_GROUP)
    assert ideal.step == pytest.approx((flops + 2 * 160 + 16 * 4) / 2.0)


def test_tokens_are_useful_duplicated_or_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.compare.counting.prompt_ids", lambda case, number: [0] * (5 + number % 2))
    case = Case("oncurve", "6.5M", prompts=2, group_size=3, completion=4, kl_coef=0.1)
    shared = {"prefill": 11, "decode": 6 * 3, "reference": 11 + 18, "train": 11 + 18}
    useful = sum(shared.values())
    assert tokens_of(case, 0, shared) == {"executed": useful, "useful": useful, "duplicated": 0, "padding": 0}
    padded = {"prefill": 6 * 6, "decode": 6 * 3, "reference": 6 * 10, "train": 6 * 10}
    found = tokens_of(case, 0, padded)
    assert (found["useful"], found["duplicated"], found["padding"]) == (
        useful,
        2 * 11 * 3,
        (36 - 33) + 2 * (60 - 33 - 18),
    )


def test_natural_cells_have_no_kl_and_two_dead_groups_of_five() -> None:
    case = CELLS["6.5M natural"]
    assert (case.kl_coef, case.constant_groups) == (0.0, 0.4)


def test_rows_that_go_on_after_their_end_are_padding_not_prompts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.compare.counting.prompt_ids", lambda case, number: [0] * 5)
    case = Case("oncurve", "6.5M", prompts=2, group_size=3, completion=4)
    found = tokens_of(case, 0, {"prefill": 10, "decode": 6 * 3 + 2, "train": 10 + 18})
    assert (found["duplicated"], found["padding"]) == (0, 2)
    mixed = tokens_of(case, 0, {"decode": 30 + 6 * 3, "train": 10 + 18})
    assert (mixed["duplicated"], mixed["padding"]) == (20, 0)
