from pathlib import Path
from typing import Any

import pytest
from bench.learning import measure as learning
from bench.learning.trl import arguments
from bench.learning.watch import Job, RunOver, Watch

ROOT = Path(__file__).parents[3]


def points(*accuracies: float, seconds: float = 10.0) -> list[dict[str, Any]]:
    return [
        {"step": 5 * i, "seconds": seconds * i, "processor_seconds": seconds * i, "accuracy": accuracy}
        for i, accuracy in enumerate(accuracies)
    ]


def one(system: str, seed: int, *accuracies: float, seconds: float = 10.0) -> dict[str, Any]:
    return {"system": system, "seed": seed, "points": points(*accuracies, seconds=seconds)}


RUNS = [
    one("oncurve", 0, 0.2, 0.8, 1.0),
    one("trl", 0, 0.2, 0.8, 1.0, seconds=30.0),
    one("oncurve", 1, 0.2, 0.9),
    one("trl", 1, 0.2, 0.9, seconds=50.0),
    one("oncurve", 2, 0.2, 0.95),
    one("trl", 2, 0.2, 0.5),
]


def test_the_target_is_met_between_two_evaluations() -> None:
    assert learning.reached(points(0.2, 0.8, 1.0), 0.9) == pytest.approx(15.0)
    assert learning.reached(points(0.2, 0.8, 1.0), 0.9, "step") == pytest.approx(7.5)
    assert learning.reached(points(0.95), 0.9) == 0.0
    assert learning.reached(points(0.2, 0.5), 0.9) is None


def test_seeds_that_one_system_never_brought_there_are_not_in_the_ratio() -> None:
    found = learning.summary(RUNS, 0.9)
    assert found["trl"]["seconds"] == [pytest.approx(45.0), 50.0, None]
    assert found["ratio"][0] == pytest.approx((45 + 50) / (15 + 10))
    assert learning.summary(RUNS[4:], 0.9)["ratio"] is None


def test_the_median_curve_has_the_evaluations_that_all_runs_had() -> None:
    assert learning.median_curve([RUNS[0], RUNS[2]]) == ([0.0, 10.0], [0.2, pytest.approx(0.85)])


def test_the_recipe_in_trls_words() -> None:
    config, _ = Job("trl", 3, str(ROOT / learning.RECIPE), 10).config()
    found = arguments(config, 3)
    assert found["per_device_train_batch_size"] == config.data.prompts_per_step * config.rollout.group_size
    assert (found["loss_type"], found["beta"], found["learning_rate"]) == ("dapo", config.kl.coef, 2e-4)
    assert (found["max_steps"], found["seed"]) == (config.run.steps, 3)


def test_a_run_ends_a_margin_after_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    watch = Watch(Job("oncurve", 0, str(ROOT / learning.RECIPE), 100, 0.9, every=2, margin=3, problems=8), said.append)
    monkeypatch.setattr(watch, "_evaluate", lambda policy, reward: 0.5 if watch.step < 4 else 0.95)

    def steps() -> None:
        while True:
            watch.start()
            watch.stop(0.0, lambda folder: None)

    with pytest.raises(RunOver):
        steps()
    assert watch.step == 8  # reached at 4, and 7 is no evaluation
