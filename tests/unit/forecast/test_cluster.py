"""The memory of a cluster's processes on one machine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.models import SIZES

from oncurve.cluster import ClusterFacts
from oncurve.forecast import MODELS, ModelShape
from oncurve.forecast.memory import Variant, on_one_host, shard_peak
from oncurve.forecast.shapes import StepWork

GIB = 2**30
WORK = StepWork(32, 8, 512, (256,) * 32)
SEVEN = Variant(MODELS["qwen2.5-7b"], WORK, checkpointing=True, on_cpu=False, process=6e8)


def layout(ranks: int = 1, workers: int = 0, divided: bool = False, lag: int = 0) -> ClusterFacts:
    return ClusterFacts(processes=ranks, workers=workers, divided=divided, lag=lag)


def test_shards_are_parts_of_the_whole() -> None:
    two, four = (shard_peak(SEVEN, layout(ranks, 1, True), first=False) for ranks in (2, 4))
    number = SEVEN.shape.parameters
    assert two - four == pytest.approx((4 + 8 + 4) * number / 4)  # masters, moments and gradients
    assert shard_peak(SEVEN, layout(2, 1, True)) == pytest.approx(two + 2 * number)


def test_a_large_model_needs_what_the_formula_worked_out_by_hand_says() -> None:
    # 14.8B on 8 ranks: 16 bytes of 14.8e9 / 8 are 27.5 GiB; checkpointed activations of 48 layers of 5,120 in 2 bytes
    # are 492 kB per token: 6 GiB of the 13,056 tokens that whole groups make of 16,384. Embedding and head are 1.56e9
    # parameters: their gradient in bfloat16 and what is sent of it in float32 are 8.7 GiB, three layers 1.5 GiB.
    variant = replace(SEVEN, shape=MODELS["qwen2.5-14b"], work=replace(WORK, micro_tokens=16384), process=0.0)
    rest = variant.memory().parts["head_and_workspace"]
    peak = shard_peak(variant, layout(8, 0, True), first=False) - rest
    assert peak / GIB == pytest.approx(27.5 + 5.98 + 8.7 + 1.54, rel=0.01)


def test_versions_that_wait_are_on_rank_0() -> None:
    for divided in (False, True):
        variant = replace(SEVEN, on_cpu=True)
        more = on_one_host(variant, layout(2, 2, divided, lag=2)) - on_one_host(variant, layout(2, 2, divided))
        assert more == pytest.approx(4 * 2 * SEVEN.shape.parameters)


def test_one_host_holds_all_processes() -> None:
    variant = replace(SEVEN, on_cpu=True)
    one = on_one_host(variant, layout())
    assert one == variant.memory().peak
    assert on_one_host(variant, layout(2)) > one
    assert on_one_host(variant, layout(1, 2)) > on_one_host(variant, layout(1, 1)) > one


RESULTS = Path(__file__).parents[3] / "bench/results"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("cluster_fsdp_*.json")))
def test_the_formula_of_shards_is_within_15_percent_of_each_rank_that_was_measured(name: str) -> None:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for ranks, phases in found["phases_by_ranks"].items():
        begin = phases[0]["ranks"][0]["peak"]
        variant = replace(_measured(found), process=begin)
        for rank in range(int(ranks)):
            peak = max(phase["ranks"][rank]["peak"] for phase in phases[1:])
            planned = shard_peak(variant, layout(int(ranks), 1, divided=True), first=rank == 0)
            assert planned == pytest.approx(peak, rel=0.15), (ranks, rank)


def _measured(found: dict[str, Any]) -> Variant:
    """The subject of `python -m bench.cluster.fsdp`."""
    size = SIZES[found["size"]]
    wide = (size.hidden // size.heads, size.intermediate, size.vocabulary, True)
    shape = ModelShape(size.layers, size.hidden, size.heads, size.kv_heads, *wide)
    rank = found.get("lora_rank", 0)
    shape = replace(shape, adapter=shape.low_rank(rank) if rank else 0)
    work = StepWork(2, found["rows"] // 2, found["tokens_per_row"] - 8, (8, 8), micro_tokens=512)
    return Variant(shape, work, found["dtype"], reference=found["kl_coef"] > 0, checkpointing=True, held=not rank)


def test_a_teacher_is_divided_once_rank_0_has_read_it() -> None:
    plain, taught = replace(SEVEN, process=0.0), replace(SEVEN, process=0.0, teacher=400e9)
    for ranks in (1, 4):
        before, after = (shard_peak(each, layout(ranks, 1, True), first=False) for each in (plain, taught))
        assert after - before == pytest.approx(400e9 / ranks)
        start = (4 + 2 * ranks) * SEVEN.shape.parameters / ranks + 400e9 * (1 + 1 / ranks)
        assert shard_peak(taught, layout(ranks, 1, True)) == pytest.approx(start)


def test_ranks_in_shards_take_less_of_one_host_than_copies() -> None:
    variant = replace(SEVEN, on_cpu=True)
    shards = [on_one_host(variant, layout(ranks, divided=True)) for ranks in (1, 2, 4)]
    copies = [on_one_host(variant, layout(ranks)) for ranks in (1, 2, 4)]
    assert shards[2] - shards[1] < 0.2 * (copies[2] - copies[1])
