"""Bytes: by hand, and against what a learner really holds."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fakes.tables import table
from oncurve.forecast import MODELS, ModelShape
from oncurve.forecast.memory import GRAPHS, HEAP, Activations, Variant
from oncurve.forecast.outlook import NEUTRAL, suggestions
from oncurve.forecast.shapes import StepWork
from oncurve.learner.optimizer.update import MasterAdamW

SHAPE = ModelShape(2, 8, 2, 1, 4, 16, 100, True)  # 1952 parameters, 800 outside of the layers, K/V 16 numbers a token
WIDE = 1024
WORK = StepWork(4, 3, 4, (10,), rows=6, micro_tokens=44)  # 22 tokens a group, two groups a pass


@pytest.mark.parametrize(("settings", "total"), table("memory", "bytes_a_parameter"))
def test_bytes_a_parameter(settings: dict[str, Any], total: int) -> None:
    assert Variant(SHAPE, WORK, **settings).footprint.total == total


def tensors() -> list[torch.Tensor]:
    return [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]  # isinstance asks objects, which warn


def held_by_an_optimizer(**settings: Any) -> float:
    """Bytes a parameter that exist after a step and another backward pass, found by looking at every tensor."""
    network = nn.Linear(WIDE, WIDE, bias=False)
    gc.collect()
    before = {id(x) for x in tensors()}
    before -= {id(network.weight)}
    optimizer = MasterAdamW(network, settings.pop("dtype"), **settings)
    x = torch.ones(1, WIDE, dtype=network.weight.dtype)
    for _ in range(2):
        network(x).sum().backward()
        if optimizer.steps == 0:
            optimizer.step(1e-3, optimizer.gradient_norm())
    del x
    gc.collect()
    living = [x for x in tensors() if id(x) not in before]
    living += [x.grad for x in living if x.grad is not None]
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in living if x.numel() >= WIDE**2
    }  # workspaces are smaller
    return sum(storages.values()) / WIDE**2


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_bytes_a_parameter_are_those_that_are_held(dtype: torch.dtype, name: str) -> None:
    assert held_by_an_optimizer(dtype=dtype) == Variant(SHAPE, WORK, name).footprint.total


@pytest.mark.slow
def test_lean_bytes_a_parameter_are_those_that_are_held() -> None:
    for moments in ("float32", "bfloat16"):
        for masters in ("float32", "split"):
            held = held_by_an_optimizer(dtype=torch.bfloat16, moments=moments, masters=masters)
            # with lean states there is one workspace of fixed size beside, smaller than a matrix here
            assert held == Variant(SHAPE, WORK, "bfloat16", moments, masters).footprint.total


def test_keys_and_values_of_what_is_in_flight() -> None:
    # 6 rows at a time are 2 groups: 2·10 prompt tokens and 6·4 completion tokens, 2·2·1·4·2 = 32 bytes each
    assert Variant(SHAPE, WORK).cache == 32 * (2 * 10 + 6 * 4)
    assert Variant(SHAPE, replace(WORK, rows=1)).cache == 32 * (10 + 3 * 4)
    # on a GPU they may be of all 4 groups, and a row is alone
    assert Variant(SHAPE, WORK, on_cpu=False).cache == 32 * (4 * 10 + 6 * 4)
    assert Variant(SHAPE, replace(WORK, rows=1), on_cpu=False).cache == 32 * (10 + 4)


def test_the_peak_by_hand() -> None:
    activations = Activations(token=100, inside=10, fixed=1000, heap=1.0)
    variant = Variant(SHAPE, WORK, reference=True, on_cpu=False)
    found = replace(variant, process=5000).memory(activations)
    state = 5000 + 1952 * 16
    # two passes, so the second starts with all gradients: 4·1952 + 2·100·44 + 10·44 + 1000
    # keys and values; of each of 6 rows 100 logits of 2 bytes, and of 64 weights a sum of 4 bytes and one of 8
    decoding = 32 * 64 + 6 * 100 * (2 + 12 / 64) + GRAPHS
    training = state + 7808 + 8800 + 440 + 1000
    assert found.phases["training"] == training + decoding
    assert found.phases["export"] == state + 4 * 800
    assert found.phases["rollout"] == state + decoding
    assert (found.peak, found.when) == (found.phases["training"], "training")
    # one pass of all four groups: it starts with the head's gradient at most, and ends with all of them
    whole = replace(variant, work=replace(WORK, micro_tokens=1000))
    room = 1952 * 16 + 4 * 800 + 2 * 100 * 88 + 10 * 88 + 1000
    assert whole.memory(activations).phases["training"] == room + decoding
    assert whole.memory(Activations(1, 1, 0, 1.0)).phases["training"] == 1952 * 16 + 7808 + 88 + 88 + decoding
    # a card without room for both: keys and values take half of what the state leaves, and an update has them freed
    tight = replace(whole, room=room).memory(activations)
    assert tight.phases["training"] == room
    small = replace(whole, room=1952 * 16 + 1000.0).memory(activations)
    assert small.parts["keys_and_values"] == 500


def test_activations_by_hand() -> None:
    work = StepWork(1, 1, 4, (4,))  # keys and values stand once for the prompt and once behind it: (4 + 4)/4 = 2
    kept = 8 * 8 + 2 * (2 * 8 + 3 * 8 + 2 * 4 * 2 + 2 * 16)
    found = Variant(SHAPE, work).activations()
    assert (found.token, found.inside, found.heap) == (kept, 2 * (4 * 16 + 4 * 8), HEAP)
    with_checkpoints = Variant(SHAPE, work, checkpointing=True).activations()
    assert (with_checkpoints.token, with_checkpoints.inside) == (2 * 8, found.inside + kept)
    assert Variant(SHAPE, work, on_cpu=False).activations().heap == 1


def test_suggestions_say_what_each_saves() -> None:
    shape = ModelShape(24, 896, 14, 2, 64, 4864, 151936, True)
    variant = Variant(shape, StepWork(32, 8, 400, (100,)), "float32", reference=True)
    found = suggestions(variant, 0)
    assert [suggestion.settings.partition("=")[0] for suggestion in found[:-1]] == table("memory", "suggested")
    now = variant.memory().peak
    assert all(suggestion.peak < 0.98 * now for suggestion in found)
    assert found[-1].peak < min(suggestion.peak for suggestion in found[:-1])
    moments = next(suggestion for suggestion in found if "moments" in suggestion.settings)
    assert now - moments.peak == 4 * shape.parameters
    assert suggestions(variant, 0, 1.1)[0].peak == pytest.approx(1.1 * found[0].peak)


def test_settings_that_change_no_result_are_enough_where_each_alone_lowers_another_phase() -> None:
    shape = MODELS["qwen2.5-7b"]
    shape = replace(shape, adapter=shape.low_rank(16))
    variant = Variant(shape, StepWork(32, 8, 1024, (256,)))
    smaller = [replace(variant.work, micro_tokens=2112), replace(variant.work, rows=64)]
    peaks = [replace(variant, work=work).memory().peak for work in smaller]
    room = 0.99 * min(peaks)
    together = suggestions(variant, room)[-1]
    assert {each.partition("=")[0] for each in together.settings.split()} <= {*NEUTRAL}
    assert len(together.settings.split()) > 1
    assert together.peak <= room


def test_with_an_adapter_only_its_parameters_are_trained_by_hand() -> None:
    # rank 2 on the 7 layers of each of 2: 2·2·(7·8 + 2·(8 + 4) + 3·16) = 4·128
    assert SHAPE.low_rank(2) == 512
    adapted = replace(SHAPE, adapter=512)
    assert (SHAPE.trained, adapted.trained, adapted.parameters) == (1952, 512, 1952)
    activations = Activations(token=100, inside=10, fixed=1000, heap=1.0)
    variant = Variant(adapted, WORK, on_cpu=False)
    found = replace(variant, process=5000).memory(activations)
    state = 5000 + 1952 * 2 + 512 * 14
    decoding = found.phases["rollout"] - state
    assert found.phases["training"] == state + 4 * 512 + 8800 + 440 + 1000 + decoding
    assert found.parts["parameters"] == 1952 * 2 + 512 * 6
    assert (found.parts["optimizer"], found.parts["gradients"], found.parts["reference"]) == (512 * 8, 512 * 4, 0)
    # a frozen copy of the adapter, and a critic with an adapter of its own: 2 and 14 bytes a parameter of it
    both = replace(variant, reference=True, critic=True).memory(activations)
    assert (both.parts["reference"], both.parts["critic"]) == (512 * 2, 512 * 14)
    # one pass begins without a gradient: embedding and head are frozen
    alone = replace(variant, work=replace(WORK, micro_tokens=1000)).memory(activations)
    assert alone.phases["training"] == 1952 * 2 + 512 * 14 + 2 * 100 * 88 + 10 * 88 + 1000 + decoding


def test_a_quantised_base_takes_4_bits_and_the_scales_of_its_blocks_by_hand() -> None:
    # 64·256 weights: 64·256/2 bytes, 256 scales of a byte, one of 4 bytes; the 800 of embedding and head stay
    shape = replace(SHAPE, hidden=64, intermediate=64, heads=1, kv_heads=1, head_dim=64, vocabulary=10, adapter=512)
    assert (shape.layer_products, shape.outside_layers) == (4 * 64 * 64 + 3 * 64 * 64, 640)
    plain = Variant(shape, replace(WORK, micro_tokens=1000), on_cpu=False)
    packed, per_block = replace(plain, quantized=True), 64 * 256 / 2 + 256 + 4
    assert packed.weights == 2 * (640 + 512) + shape.body / (64 * 256) * per_block
    assert plain.weights == 2 * (640 + shape.body + 512)
    peaks = [each.memory(Activations(1, 1, 0, 1.0)).phases["training"] for each in (plain, packed)]
    # one matrix is unpacked at a time, to 2 bytes
    assert peaks[0] - peaks[1] == plain.weights - packed.weights - 2 * 64 * 64


def test_the_reference_of_an_adapter_is_the_model_with_it_off() -> None:
    variant = Variant(replace(SHAPE, adapter=512), WORK, reference=True, held=False)
    assert variant.footprint.reference == 0
    assert replace(variant, held=True).footprint.reference == 2
