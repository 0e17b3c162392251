"""What both systems share in the learning comparison: the job, the clock, and the evaluation of the policy.

The clock stops during evaluations. The same code evaluates both systems: the policy is saved in
Hugging Face form, read back in float32, and solves the held-out problems greedily.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Job", "RunOver", "Watch"]


class RunOver(Exception):  # noqa: N818  not an error: the run is complete
    """The target is reached, and the margin after it."""


@dataclass(frozen=True)
class Job:
    """One run.

    recipe     the recipe of oncurve from which both systems are configured
    target     the greedy accuracy whose time is measured
    every      steps between evaluations
    margin     further steps after the target was reached
    problems   held-out problems of an evaluation
    """

    system: str
    seed: int
    recipe: str
    steps: int
    target: float = 0.9
    every: int = 5
    margin: int = 10
    problems: int = 512
    threads: int = 1

    def config(self) -> Any:
        """Return the run's configuration, and the folder that its paths start from; steps beyond the recipe's are
        refused.
        """
        from oncurve.config.loading import load_config

        words = [f"run.seed={self.seed}", f"run.threads={self.threads}", f"data.eval_size={self.problems}"]
        return load_config(self.recipe, [*words, "eval.every=0", "checkpoint.every=0"])


class Watch:
    """The clock of a run, and its evaluations.

        watch.begin(policy)             # policy(folder) saves the model there, for each evaluation
        watch.start()
        ... a step ...
        watch.stop(reward, policy)      # raises RunOver at the end of the run

    Seconds are wall-clock seconds; processor seconds, which a busy neighbour stretches less, are measured as well.
    """

    def __init__(self, job: Job, answer: Callable[[dict[str, Any]], None]) -> None:
        from oncurve.data import load_eval_rows
        from oncurve.rewards import RewardSet

        self.job = job
        self.step, self.seconds, self.processor_seconds = 0, 0.0, 0.0
        self._since = (0.0, 0.0)
        self._answer = answer
        self._config, self._base = job.config()
        self._rows = load_eval_rows(self._config.data, self._base)
        self._rewards = RewardSet.build(self._config.rewards, base=self._base)
        self._reached: int | None = None

    def begin(self, policy: Callable[[Path], None], **about: Any) -> None:
        """Evaluate the policy before the first step; `about` is kept with the results."""
        self._answer({"about": about})
        self._evaluate(policy, None)

    def start(self) -> None:
        """A step begins."""
        self._since = (time.perf_counter(), time.process_time())

    def stop(self, reward: float, policy: Callable[[Path], None]) -> None:
        """A step is done. Raises RunOver at the end of the run."""
        wall, processor = self._since
        self.seconds += time.perf_counter() - wall
        self.processor_seconds += time.process_time() - processor
        self.step += 1
        over = self.step >= self.job.steps
        if self.step % self.job.every == 0 or over:
            accuracy = self._evaluate(policy, reward)
            if self._reached is None and accuracy >= self.job.target:
                self._reached = self.step
            over = over or (self._reached is not None and self.step >= self._reached + self.job.margin)
        if over:
            self._rewards.close()
            raise RunOver

    def _evaluate(self, policy: Callable[[Path], None], reward: float | None) -> float:
        from oncurve.data import open_prompts
        from oncurve.models import LocalWeights, ModelConfig
        from oncurve.rollout import InProcessEngine
        from oncurve.run.loop import evaluate_policy

        with tempfile.TemporaryDirectory() as folder:
            policy(Path(folder))
            loaded = ModelConfig(path=folder, dtype="float32").build()
        engine = InProcessEngine(self._config.rollout, loaded.tokenizer, loaded.eos_ids, 0)
        engine.follow(LocalWeights(loaded.model, 0))
        prompts = open_prompts(self._rows, self._config.data, loaded.tokenizer, None)
        found = evaluate_policy(engine, self._rewards, prompts, self._config, 0).greedy_accuracy
        assert found is not None
        clocks = {"seconds": self.seconds, "processor_seconds": self.processor_seconds}
        self._answer({"step": self.step, **clocks, "accuracy": found.value, "reward": reward})
        return float(found.value)
