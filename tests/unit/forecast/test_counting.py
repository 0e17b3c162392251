"""The limits by numbers worked out by hand, amounts as people write them, machines, and limits of control groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.forecast import MACHINES, MODELS, Machine, ModelShape
from oncurve.forecast.memory import Variant
from oncurve.forecast.scaling import decode_step_floor, floors, prefill_flops, scoring_flops, training_flops
from oncurve.forecast.shapes import StepWork, machine, memory_here, parse_quantity, shape_of_size

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
    filled = StepWork(5, 8, 4, (1,), micro_tokens=52)  # a group of 33, and four rows behind their prompt
    assert (filled.micro_groups, filled.micro_batches) == (1.5, 4)
    assert filled.largest_micro == (50.0, 48.0)


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


@pytest.mark.parametrize(
    ("text", "value"), [("80GiB", 80 * 2**30), ("4.3 TB/s", 4.3e12), ("512mb", 512e6), ("7_000_000", 7e6)]
)
def test_amounts(text: str, value: float) -> None:
    assert parse_quantity(text, "--memory", "80GiB") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "much", "-3GB", "0GB", "80 parsecs", "nan", "9e999"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--memory.*like 80GiB"):
        parse_quantity(text, "--memory", "80GiB")


def test_a_machine_by_name_and_with_another_memory() -> None:
    named = machine("H200", None)
    assert (named.flops, named.bandwidth, named.source) == (790e12, 4.3e12, "measured")
    assert (machine("h200", "80GiB").memory, machine("h200", "80GiB").flops) == (80 * 2**30, 790e12)


@pytest.mark.parametrize("name", ["T4", "L4", "A10G", "V100", "v100-32", "5090", "rtx5090", "B200", "a100"])
def test_the_cards_that_people_have_are_known(name: str) -> None:
    found = machine(name, None)
    assert found.name.startswith(name.lower()) or found.name.endswith(name.lower())
    assert found.dtype == ("float32" if name[:1] in "TVtv" else "bfloat16")


@pytest.mark.parametrize(("name", "said"), [("h2000", "did you mean"), ("toaster", "there are: h200")])
def test_an_unknown_machine_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        machine(name, None)


def test_a_shape_by_its_size() -> None:
    seven = shape_of_size(7e9)
    assert seven.parameters == 7e9
    assert seven.body + seven.head == pytest.approx(7e9, rel=0.15)
    for size in (1e5, 1e14):
        with pytest.raises(ConfigError, match="--parameters"):
            shape_of_size(size)


def test_the_room_here_is_real() -> None:
    room = memory_here()
    assert room.available > 0
    assert room.limit


def group(root: Path, lines: str, folder: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    (root / "sys/fs/cgroup" / folder).mkdir(parents=True)
    for name, content in files.items():
        (root / "sys/fs/cgroup" / folder / name).write_text(content)


def test_a_limit_of_version_2(tmp_path: Path) -> None:
    files = {
        "memory.max": "300000000\n",
        "memory.current": "200000000\n",
        "memory.stat": "anon 5\ninactive_file 50000000\n",
    }
    group(tmp_path, "0::/a/b\n", "a", files)  # the limit stands a level above the process's own group
    room = memory_here(tmp_path)
    assert room.limit == "cgroup v2 memory.max of /a"
    assert 150e6 < room.available < 150e6 + 20e9  # and what this process holds


def test_a_limit_of_version_1_and_none_at_all(tmp_path: Path) -> None:
    files = {"memory.limit_in_bytes": "300000000\n", "memory.usage_in_bytes": "100000000\n"}
    group(tmp_path / "one", "4:cpu,memory:/x\n0::/\n", "memory/x", files)
    assert memory_here(tmp_path / "one").limit == "cgroup v1 memory.limit_in_bytes of /x"
    group(tmp_path / "two", "0::/a\n", "a", {"memory.max": "max\n"})
    assert memory_here(tmp_path / "two").limit == "the machine's free memory"
    assert memory_here(tmp_path / "nowhere").limit == "the machine's free memory"
