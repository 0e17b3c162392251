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


def test_the_target_is_met_between_two_evaluations() -> None:
    assert learning.reached(points(0.2, 0.8, 1.0), 0.9) == pytest.approx(15.0)
    assert learning.reached(points(0.2, 0.8, 1.0), 0.9, "step") == pytest.approx(7.5)
    assert learning.reached(points(0.95), 0.9) == 0.0
    assert learning.reached(points(0.2, 0.5), 0.9) is None


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
