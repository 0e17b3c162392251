"""The quick way of group advantages, for the batch of even groups, against the general way by segments."""

import pytest
import torch
from torch import Tensor

from oncurve.advantages import group, group_advantages
from oncurve.advantages.group import Scale

SCALES = ("group", "batch", "none")


def even(groups: int, size: int) -> Tensor:
    return torch.arange(groups).repeat_interleave(size)


def all_valid(ids: Tensor) -> Tensor:
    return torch.ones(len(ids), dtype=torch.bool)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize(("groups", "size"), [(1, 2), (3, 5), (16, 4), (64, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_agree(
    monkeypatch: pytest.MonkeyPatch, scale: Scale, ddof: int, eps: float, groups: int, size: int, dtype: torch.dtype
) -> None:
    ids = even(groups, size)
    draw = torch.Generator().manual_seed(size)
    rewards = torch.rand(len(ids), generator=draw, dtype=dtype).round(decimals=1) + 0.1
    rewards[:size] = 0.7  # one constant group
    quick = group._of_even_groups(rewards, all_valid(ids), ids, scale, ddof, eps)
    assert quick is not None
    monkeypatch.setattr(group, "_of_even_groups", lambda *arguments: None)
    general = group_advantages(rewards, all_valid(ids), ids, scale, ddof, eps)
    torch.testing.assert_close(quick, general, atol=1e-13, rtol=1e-12)
    assert quick[:size].tolist() == [0.0] * size


def test_what_is_not_even_goes_the_general_way() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    odd = {
        "sizes differ": torch.tensor([0, 0, 0, 1]),
        "not adjacent": torch.tensor([0, 1, 0, 1]),
        "not in order": torch.tensor([1, 1, 0, 0]),
        "one a group": torch.arange(4),
        "not from 0": torch.tensor([1, 1, 1, 1]),
    }
    for name, ids in odd.items():
        assert group._of_even_groups(rewards, all_valid(ids), ids, "group", 1, 1e-6) is None, name
    ids = even(2, 2)
    assert group._of_even_groups(rewards, rewards > 0, ids, "group", 1, 1e-6) is None
    assert group._of_even_groups(rewards / 0.0, all_valid(ids), ids, "group", 1, 1e-6) is None


def test_what_it_is_given_is_not_changed() -> None:
    ids = even(4, 3)
    rewards = torch.arange(12, dtype=torch.float64)
    group_advantages(rewards, all_valid(ids), ids)
    assert rewards.tolist() == list(range(12))
    every_other = torch.arange(24, dtype=torch.float64)[::2]
    torch.testing.assert_close(
        group_advantages(every_other, all_valid(ids), ids), group_advantages(every_other.clone(), all_valid(ids), ids)
    )
