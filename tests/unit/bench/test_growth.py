from typing import Any

import pytest
import torch
from bench.growth.curves import Curve, fits, memory_verdict, prompt_verdict
from bench.growth.passes import Ours, Point, micro_batch_rows
from bench.growth.worker import sampler

X = [64, 128, 256]


def curve(ours: float, theirs: float, fixed: float = 0.01) -> dict[str, Any]:
    """Times that grow by so much a token, exactly."""
    samples = [{"oncurve": [fixed + ours * x] * 3, "trl": [fixed + theirs * x] * 3} for x in X]
    return fits(Curve("prompt_tokens", "prompt tokens P", tuple(X)), X, samples)


def held(*added: int) -> list[dict[str, Any]]:
    return [
        {"value": value, "beyond": value >= 8, "before": 1000, "peak": 1000 + bytes_}
        for value, bytes_ in zip((2, 8, 16, 32), added, strict=True)
    ]


@pytest.mark.parametrize(("ours", "passes"), [(2e-5, True), (2.4e-5, True), (2.6e-5, False)])
def test_the_slope_in_p_must_be_a_gth_of_trls(ours: float, passes: bool) -> None:
    verdict = prompt_verdict(curve(ours, 1.6e-4), 8)
    assert verdict["value"][0] == pytest.approx(8 * ours / 1.6e-4)
    assert verdict["pass"] is passes


def test_memory_is_compared_beyond_the_micro_batch_only() -> None:
    flat, growing = held(10, 100, 104, 110), held(10, 100, 200, 400)
    verdict = memory_verdict({"G": {"oncurve": flat, "trl": growing}, "M": {"oncurve": growing, "trl": flat}})
    assert verdict["pass"]
    assert verdict["value"] == pytest.approx(1.1)
    assert verdict["grown"]["trl"] == {"G": 4.0, "M": pytest.approx(1.1)}
    assert not memory_verdict({"G": {"oncurve": growing, "trl": flat}})["pass"]
    assert not memory_verdict({"G": {"oncurve": flat[:2], "trl": flat}})["pass"]


def test_the_training_pass_of_ours_leaves_a_gradient() -> None:
    system = Ours(64, torch.float32)
    point = Point(prompts=1, group_size=2, prompt_tokens=4, completion=3, vocabulary=64)
    system.take(point)
    system.train_pass()
    assert any(float(gradient.abs().max()) > 0 for gradient in system.gradient().values())
    assert point.padded_tokens == 14
    assert micro_batch_rows(Point(prompt_tokens=100, completion=28, tokens_per_micro_batch=300)) == 2


def test_the_sampler_is_timed_at_every_vocabulary() -> None:
    settings = {"vocabularies": [16, 32], "rows": 2, "repeats": 2, "seconds_a_point": 0.0, "threads": 1}
    points = sampler(settings)["points"]
    assert [sorted(point) for point in points] == [["oncurve", "trl"]] * 2
