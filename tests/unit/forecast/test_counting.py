"""The limits, by numbers worked out by hand and by those measured hardware was said to allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.tables import table
from oncurve.forecast import MACHINES, MODELS, Machine, ModelShape
from oncurve.forecast.counting import decode_step_floor, floors, prefill_flops, scoring_flops, training_flops
from oncurve.forecast.memory import Variant
from oncurve.forecast.shapes import StepWork

SMALL = ModelShape(
    layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=100, tied=True
)  # a layer: 2·8·4·(2 + 1) + 3·8·16 = 192 + 384 = 576; N_b = 1152, N_h = 800, a = 4·2·2·4 = 64
WORK = StepWork(prompts=2, group_size=3, completion_tokens=4, prompt_tokens=(10, 10))


def test_a_shape_counts_its_parameters() -> None:
    assert (SMALL.layer_products, SMALL.body, SMALL.head, SMALL.attention_flops) == (576, 1152, 800, 64)
    assert SMALL.parameters == 1952
    assert SMALL.cache_bytes(2) == 2 * 2 * 1 * 4 * 2


@pytest.mark.parametrize(("name", "published"), table("counting", "named_shapes_are_as_large_as_the_models"))
def test_named_shapes_are_as_large_as_the_models(name: str, published: int) -> None:
    assert MODELS[name].parameters == pytest.approx(published, rel=5e-4)


def test_flops_by_hand() -> None:
    # prefill: 2·[2·1152·10 + 64·10²/2 + 2·800]
    assert prefill_flops(SMALL, WORK) == 2 * (23040 + 3200 + 1600)
    # a group attends 10²/2 + 3·(10·4 + 4²/2) = 50 + 144 = 194 pairs
    assert training_flops(SMALL, WORK) == 6 * 1152 * 2 * 22 + 6 * 800 * 24 + 3.5 * 64 * 2 * 194
    assert scoring_flops(SMALL, WORK) == 2 * 1152 * 2 * 22 + 2 * 800 * 24 + 64 * 2 * 194


def test_a_decode_step_is_bound_by_bytes_or_by_flops() -> None:
    # bytes: 2·1952 + 32·(2·10 + 6·3) = 5120; FLOPs: 2·1952·6 + 64·6·13 = 28416
    slow_memory, slow_products = Machine("", 1, 1e12, 5120), Machine("", 1, 28416, 1e12)
    assert decode_step_floor(SMALL, WORK, slow_memory, 3) == 1.0
    assert decode_step_floor(SMALL, WORK, slow_products, 3) == 1.0


def test_prompts_of_many_lengths_are_each_counted() -> None:
    mixed = StepWork(2, 3, 4, (4, 16))
    assert training_flops(SMALL, mixed) - training_flops(SMALL, WORK) == 3.5 * 64 * ((16 + 256) / 2 - 100)


@pytest.mark.parametrize(
    ("name", "prompts", "step", "decode_step"),
    [("qwen2.5-0.5b", 32, 0.78, 0.45e-3), ("qwen2.5-1.5b", 32, 2.33, 1.24e-3), ("qwen2.5-7b", 8, 3.7, 3.5e-3)],
)
def test_limits_of_an_h200(name: str, prompts: int, step: float, decode_step: float) -> None:
    found = floors(Variant(MODELS[name], StepWork(prompts, 8, 512, (256,))), MACHINES["h200"])
    assert found["prefill"] + found["decode"] + found["train"] == pytest.approx(step, rel=0.01)
    assert found["decode_step"] == pytest.approx(decode_step, rel=0.01)
    assert found["step"] == sum(
        found[phase] for phase in ("prefill", "decode", "reference", "old", "train", "optimizer")
    )
    assert found["reference"] == found["old"] == 0


def test_passes_and_updates_are_counted() -> None:
    one, many = StepWork(2, 3, 4, (10,)), StepWork(2, 3, 4, (10,), minibatches=2, ppo_epochs=3, old_pass=True)
    machine = Machine("", 1, 1e9, 1e9)
    first, second = (floors(Variant(SMALL, work), machine) for work in (one, many))
    assert second["train"] == 3 * first["train"]
    assert second["old"] == pytest.approx(scoring_flops(SMALL, one) / 1e9)
    assert first["optimizer"] == 1952 * (2 * 14 + 4) / 1e9
    assert second["optimizer"] == 6 * first["optimizer"]


def test_micro_batches_of_whole_groups() -> None:
    # a group has 10 + 3·4 = 22 tokens
    assert StepWork(5, 3, 4, (10,), micro_tokens=50).micro_groups == 2
    assert StepWork(5, 3, 4, (10,), micro_tokens=50).micro_batches == 3
    assert StepWork(5, 3, 4, (10,), micro_tokens=50).largest_micro == (44.0, 24.0)
    split = StepWork(1, 3, 4, (10,), micro_tokens=18)  # two rows behind the prompt
    assert split.micro_groups == pytest.approx(2 / 3)
    assert split.micro_batches == 2
    assert split.largest_micro == (18.0, 8.0)


def test_flops_with_an_adapter_by_hand() -> None:
    # 24 completion tokens, 44 tokens in all, 194 pairs of tokens a group, an adapter of 100 parameters
    adapted = replace(SMALL, adapter=100)
    assert training_flops(adapted, WORK) == 4 * 1152 * 44 + 6 * 100 * 44 + 4 * 800 * 24 + 3.5 * 64 * 2 * 194
    assert scoring_flops(adapted, WORK) == scoring_flops(SMALL, WORK) + 2 * 100 * 44
    assert prefill_flops(adapted, WORK) == prefill_flops(SMALL, WORK) + 2 * 100 * 20
    assert floors(Variant(adapted, WORK), Machine("", 1, 1e9, 1e9))["optimizer"] == 100 * (2 * 14 + 4) / 1e9


def test_further_turns_compute_their_rows_again_and_share_no_prompt():
    one = StepWork(prompts=2, group_size=4, completion_tokens=60, prompt_tokens=(10, 30), rows=8)
    three = replace(one, turns=3)
    per_turn = 2 * 4 * (20 + 30)  # rows, each of its prompt and half of its completion
    assert three.prefills * 2 * 20 == pytest.approx(2 * 20 + 2 * per_turn)
    shape = MODELS["qwen2.5-0.5b"]
    tokens = [Variant(shape, work, "bfloat16", on_cpu=True).cache / shape.cache_bytes(2) for work in (one, three)]
    assert tokens == [2 * 20 + 8 * 60, 8 * 20 + 8 * 60]
