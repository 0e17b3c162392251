"""The memory of a cluster's processes, and the split of its GPUs."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.models import SIZES

from oncurve.base.errors import ConfigError
from oncurve.forecast import MACHINES, MODELS, ModelShape, Variant, Work, parse_machines
from oncurve.forecast.cluster import (
    Layout,
    best_layout,
    fits,
    layouts,
    on_one_host,
    rank_memory,
    setup_of,
    worker_memory,
)
from oncurve.forecast.cluster_plan import Machines, _chosen, _enough, _fitting, _ways, peak_of
from oncurve.forecast.simulation import simulate

GIB = 2**30
WORK = Work(32, 8, 512, (256,) * 32)
SEVEN = Variant(MODELS["qwen2.5-7b"], WORK, "bfloat16", "float32", "float32", False, True, on_cpu=False, process=6e8)
CARDS = Machines(1, 8, MACHINES["h200"])


def test_a_replica_holds_what_one_process_holds() -> None:
    one = SEVEN.memory()
    assert rank_memory(SEVEN, Layout()).peak == one.peak
    many = rank_memory(SEVEN, Layout(4, 4))
    assert many.phases["training"] == one.phases["training"]
    assert many.parts["keys_and_values"] == 0


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_shards_are_parts_of_the_whole(ranks: int) -> None:
    memory = rank_memory(SEVEN, Layout(ranks, 1, "fsdp"), first=False)
    number = SEVEN.shape.parameters
    assert memory.parts["parameters"] == 4 * number / ranks
    assert memory.parts["optimizer"] == 8 * number / ranks
    assert memory.parts["gradients"] == 4 * number / ranks
    assert memory.parts["copy"] == 0
    first = rank_memory(SEVEN, Layout(ranks, 1, "fsdp"))
    assert first.parts["copy"] == 2 * number
    assert first.peak == pytest.approx(memory.peak + 2 * number)


def test_large_models_need_what_the_formula_worked_out_by_hand_says() -> None:
    # 14.8B on 8 ranks: 16 bytes of 14.8e9 / 8 are 27.5 GiB; checkpointed activations of 48 layers of 5,120 in 2 bytes
    # are 492 kB per token: 6 GiB of the 13,056 tokens that whole groups make of 16,384. Embedding and head are 1.56e9
    # parameters: their gradient in bfloat16 and what is sent of it in float32 are 8.7 GiB.
    shape = MODELS["qwen2.5-14b"]
    variant = replace(SEVEN, shape=shape, work=replace(WORK, micro_tokens=16384))
    memory = rank_memory(variant, Layout(8, 0, "fsdp"), first=False)
    states = sum(memory.parts[name] for name in ("parameters", "optimizer", "gradients"))
    assert states / GIB == pytest.approx(16 * shape.parameters / 8 / GIB)
    assert memory.parts["activations"] / GIB == pytest.approx(5.98, rel=0.01)
    assert memory.parts["gathered"] / GIB == pytest.approx(8.7 + 3 * 2 * 0.276e9 / GIB, rel=0.01)
    assert 44 <= memory.peak / GIB <= 50


def test_versions_that_wait_are_on_rank_0() -> None:
    plain, lagging = Layout(2, 2), Layout(2, 2, lag=2)
    more = rank_memory(SEVEN, lagging).peak - rank_memory(SEVEN, plain).peak
    assert more == pytest.approx(4 * 2 * SEVEN.shape.parameters)
    assert rank_memory(SEVEN, lagging, first=False).peak == rank_memory(SEVEN, plain, first=False).peak


def test_a_worker_has_weights_and_its_rows() -> None:
    one, four = worker_memory(SEVEN, 1), worker_memory(SEVEN, 4)
    assert one.parts["parameters"] == 2 * SEVEN.shape.parameters
    assert four.parts["keys_and_values"] == pytest.approx(one.parts["keys_and_values"] / 4)


def test_one_host_holds_all_processes() -> None:
    variant = replace(SEVEN, on_cpu=True)
    one = on_one_host(variant, Layout())
    assert one == variant.memory().peak
    assert on_one_host(variant, Layout(2)) > one
    assert on_one_host(variant, Layout(1, 2)) > on_one_host(variant, Layout(1, 1)) > one


def test_every_split_uses_all_gpus() -> None:
    assert layouts(1, "replicate") == [Layout(1, 0)]
    assert [(each.ranks, each.workers) for each in layouts(8, "fsdp")] == [(1, 7), (2, 6), (4, 4)]


def test_the_best_split_is_the_one_with_the_shortest_step() -> None:
    card, choices = MACHINES["h200"], layouts(8, "replicate")
    best, by_lag = best_layout(SEVEN, choices, card, lambda layout: True)
    steps = {each.ranks: simulate(setup_of(SEVEN, replace(each, lag=1), card), 3).step_seconds for each in choices}
    assert steps[best.ranks] == min(steps.values())
    assert by_lag[1].step_seconds < by_lag[0].step_seconds
    assert by_lag[2].step_seconds <= 1.02 * by_lag[1].step_seconds
    assert best.lag in (1, 2)
    for found in by_lag.values():
        assert 0 < found.trainer_busy <= 1 + 1e-9
        assert 0 < found.rollout_busy <= 1 + 1e-9


def test_a_lag_without_room_is_not_chosen() -> None:
    choices, room = [Layout(1, 7)], rank_memory(SEVEN, Layout(1, 7)).peak + 1
    best, by_lag = best_layout(SEVEN, choices, MACHINES["h200"], lambda layout: fits(SEVEN, layout, room))
    assert best.lag == 0
    assert list(by_lag) == [0]
    free, _ = best_layout(SEVEN, choices, MACHINES["h200"], lambda layout: True)
    assert free.lag > 0


LARGE = replace(SEVEN, shape=MODELS["qwen2.5-14b"], checkpointing=False, reference=True)


def test_what_is_said_to_make_it_fit_makes_it_fit() -> None:
    room = 40.0 * GIB
    found = _fitting(LARGE, CARDS, room, ["replicate", "fsdp"])
    assert found
    assert all(each.peak <= room for each in found)
    assert peak_of(LARGE, _chosen(LARGE, CARDS, room, ["replicate", "fsdp"])[0], CARDS) > room


def test_ranks_divide_the_model_only_where_copies_do_not_fit() -> None:
    both = ["replicate", "fsdp"]
    assert {each.sharding for each in _chosen(SEVEN, CARDS, 1e13, both)} == {"replicate"}
    room = peak_of(LARGE, Layout(4, 4, "fsdp"), CARDS)
    assert {each.sharding for each in _chosen(LARGE, CARDS, room, both)} == {"fsdp"}
    split = replace(LARGE, masters="split")
    assert {each.sharding for each in _chosen(split, CARDS, room, both)} == {"replicate"}


def test_more_gpus_are_said_to_be_enough_only_where_they_are() -> None:
    both, one = ["replicate", "fsdp"], Machines(1, 1, MACHINES["h200"])
    checkpointed = replace(LARGE, checkpointing=True)
    said = re.search(r"(\d+) of these GPUs are enough", _enough(checkpointed, one, 139.0 * GIB, both))
    assert said is not None
    room = 139.0 * GIB
    assert any(fits(checkpointed, each, room) for each in _ways(checkpointed, int(said[1]), both))
    assert not any(fits(checkpointed, each, room) for each in _ways(checkpointed, int(said[1]) // 2, both))
    huge = replace(checkpointed, shape=MODELS["qwen2.5-72b"])
    assert "rank 0 takes" in _enough(huge, one, room, both)


@pytest.mark.parametrize(
    ("text", "nodes", "each", "name"),
    [
        ("8xh200", 1, 8, "8xh200"),
        ("2x8xh200", 2, 8, "2x8xh200"),
        ("4xH100", 1, 4, "4xh100"),
        ("8xa100", 1, 8, "8xa100-80"),
        ("rtx4090", 1, 1, "1xrtx4090"),
        ("1xcpu", 1, 1, "1xcpu"),
    ],
)
def test_machines_are_read(text: str, nodes: int, each: int, name: str) -> None:
    found = parse_machines(text)
    assert (found.nodes, found.each, found.name, found.gpus) == (nodes, each, name, nodes * each)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8xh2000", "did you mean 'h200'"),
        ("8xfoo", "there are: h200, h100"),
        ("8 h200", "expected GPUs and their name"),
        ("0xh200", "1 to 4096 GPUs"),
        ("2x8xcpu", "1 node"),
        ("", "expected GPUs and their name"),
    ],
)
def test_other_machines_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_machines(text)


RESULTS = Path(__file__).parents[3] / "bench/results"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("cluster_fsdp_*.json")))
def test_the_formula_of_shards_is_within_15_percent_of_each_rank_that_was_measured(name: str) -> None:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for ranks, phases in found["phases_by_ranks"].items():
        begin = phases[0]["ranks"][0]["peak"]
        variant = replace(_measured(found), process=begin)
        for rank in range(int(ranks)):
            peak = max(phase["ranks"][rank]["peak"] for phase in phases[1:])
            planned = rank_memory(variant, Layout(int(ranks), 1, sharding="fsdp"), first=rank == 0).peak
            assert planned == pytest.approx(peak, rel=0.15), (ranks, rank)


def _measured(found: dict[str, Any]) -> Variant:
    """The subject of `python -m bench.cluster.fsdp`."""
    size = SIZES[found["size"]]
    wide = (size.hidden // size.heads, size.intermediate, size.vocabulary, True)
    shape = ModelShape(size.layers, size.hidden, size.heads, size.kv_heads, *wide)
    rank = found.get("lora_rank", 0)
    shape = replace(shape, adapter=shape.low_rank(rank) if rank else 0)
    work = Work(2, found["rows"] // 2, found["tokens_per_row"] - 8, (8, 8), micro_tokens=512)
    return Variant(shape, work, found["dtype"], "float32", "float32", found["kl_coef"] > 0, True, held=not rank)


def test_what_is_offloaded_is_not_on_a_gpu() -> None:
    kept = replace(SEVEN, reference=True)
    before, after = (rank_memory(each, Layout(2, 1, "fsdp")) for each in (kept, replace(kept, offloaded=True)))
    assert before.peak - after.peak == pytest.approx((4 + 8 + 4 + 2) * SEVEN.shape.parameters / 2)
    assert after.parts["gathered"] == before.parts["gathered"]
    here = replace(kept, on_cpu=True)
    assert rank_memory(replace(here, offloaded=True), Layout(2, 1, "fsdp")) == rank_memory(here, Layout(2, 1, "fsdp"))


def test_the_exact_kl_has_the_reference_s_head_whole() -> None:
    layout, adapted = Layout(4, 1, "fsdp"), replace(SEVEN, shape=replace(SEVEN.shape, adapter=10**7))
    for variant, more in ((SEVEN, 2 * SEVEN.shape.outside_layers), (adapted, 0)):
        exact = rank_memory(replace(variant, exact_kl=True), layout).parts["gathered"]
        assert exact - rank_memory(variant, layout).parts["gathered"] == pytest.approx(more)


def test_a_teacher_is_divided_once_rank_0_has_read_it() -> None:
    plain, taught = replace(SEVEN, process=0.0), replace(SEVEN, process=0.0, teacher=8e9)
    for ranks in (1, 4):
        before, after = (rank_memory(each, Layout(ranks, 1, "fsdp"), first=False) for each in (plain, taught))
        assert after.peak - before.peak == pytest.approx(8e9 / ranks)
        assert "start" not in after.phases
        first = rank_memory(taught, Layout(ranks, 1, "fsdp"))
        assert first.phases["start"] == pytest.approx(
            (4 + 2 * ranks) * SEVEN.shape.parameters / ranks + 8e9 * (1 + 1 / ranks)
        )


def test_ranks_in_shards_take_less_of_one_host_than_copies() -> None:
    variant = replace(SEVEN, on_cpu=True)
    shards = [on_one_host(variant, Layout(ranks, sharding="fsdp")) for ranks in (1, 2, 4)]
    copies = [on_one_host(variant, Layout(ranks)) for ranks in (1, 2, 4)]
    assert shards[2] - shards[1] < 0.2 * (copies[2] - copies[1])
    parts = [rank_memory(variant, Layout(ranks, 1, "fsdp"), first=False) for ranks in (1, 2, 4)]
    assert parts[2].peak < 0.6 * parts[0].peak
