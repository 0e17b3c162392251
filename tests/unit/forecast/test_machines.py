"""Amounts as people write them, machines by name, and the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncurve.base.errors import ConfigError
from oncurve.forecast.machines import machine, memory_here, parse_quantity
from oncurve.forecast.shapes import shape_of_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GiB", 80 * 2**30),
        ("4300GB/s", 4.3e12),
        ("4.3 TB/s", 4.3e12),
        ("512mb", 512e6),
        ("24e9", 24e9),
        ("1k", 1e3),
        ("7B", 7e9),
        ("7_000_000", 7e6),
    ],
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
