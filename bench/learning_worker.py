"""One run of the learning comparison, in a process of its own: `python -m bench.learning_worker JOB`.

It answers one JSON line per evaluation. The clock stands still while it evaluates, and has not started while a library
is imported or a model loaded. Both systems are judged by the same code: the policy is saved in Hugging Face form, read
back in float32, and asked the held-out problems greedily.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Job", "RunOver", "Watch", "main"]


class RunOver(Exception):  # noqa: N818  not an error: the run has what it wanted
    """The target is reached, and the margin after it."""


@dataclass(frozen=True)
class Job:
    """One run.

    recipe     what both systems are told: a recipe of oncurve, in its own words
    target     the greedy accuracy whose time is wanted
    every      steps between evaluations
    margin     steps to go on for after the target was reached
    problems   held-out problems that are asked
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
        """The run's configuration, and the folder that its paths start from; steps beyond the recipe's are refused."""
        from oncurve.run.loading import load_config

        words = [f"run.seed={self.seed}", f"run.threads={self.threads}", f"data.eval_size={self.problems}"]
        return load_config(self.recipe, [*words, "eval.every=0", "checkpoint.every=0"])


class Watch:
    """The clock and the judge of a run.

        watch.begin(policy)             # policy(folder) saves the model there, whenever it is judged
        watch.start()
        ... a step ...
        watch.stop(reward, policy)      # raises RunOver where no more is wanted

    Seconds are those of the clock on the wall; processor seconds, which a busy neighbour stretches less, stand beside.
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
        """Judge the policy as it is before the first step; `about` is kept with the results."""
        self._answer({"about": about})
        self._judge(policy, None)

    def start(self) -> None:
        """A step begins."""
        self._since = (time.perf_counter(), time.process_time())

    def stop(self, reward: float, policy: Callable[[Path], None]) -> None:
        """A step is done. Raises RunOver where no more is wanted."""
        wall, processor = self._since
        self.seconds += time.perf_counter() - wall
        self.processor_seconds += time.process_time() - processor
        self.step += 1
        over = self.step >= self.job.steps
        if self.step % self.job.every == 0 or over:
            accuracy = self._judge(policy, reward)
            if self._reached is None and accuracy >= self.job.target:
                self._reached = self.step
            over = over or (self._reached is not None and self.step >= self._reached + self.job.margin)
        if over:
            self._rewards.close()
            raise RunOver

    def _judge(self, policy: Callable[[Path], None], reward: float | None) -> float:
        from oncurve.data import open_prompts
        from oncurve.models import ModelConfig
        from oncurve.rollout import InProcessEngine, Policy
        from oncurve.run.assemble import judge

        with tempfile.TemporaryDirectory() as folder:
            policy(Path(folder))
            loaded = ModelConfig(path=folder, dtype="float32").build()
        engine = InProcessEngine(self._config.rollout, loaded.tokenizer, loaded.eos_ids, 0)
        engine.follow(Policy(loaded.model, 0))
        prompts = open_prompts(self._rows, self._config.data, loaded.tokenizer, None)
        found = judge(engine, self._rewards, prompts, self._config, 0).greedy_accuracy
        assert found is not None
        clocks = {"seconds": self.seconds, "processor_seconds": self.processor_seconds}
        self._answer({"step": self.step, **clocks, "accuracy": found.value, "reward": reward})
        return float(found.value)


def train_ours(job: Job, watch: Watch) -> None:
    """The recipe as oncurve runs it."""
    from oncurve.run.assemble import assemble

    config, base = job.config()
    with assemble(config, base) as run:
        about = {"dtype": str(run.loaded.dtype), "path": run.loaded.model.path_reason}
        watch.begin(run.save_model, **about)
        while True:
            watch.start()
            metrics = run.trainer.step().metrics
            watch.stop(metrics["reward"], run.save_model)


def main() -> None:
    """Run the job on the command line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    job = Job(**json.loads(sys.argv[1]))

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    import torch

    torch.set_num_threads(job.threads)
    watch = Watch(job, answer)
    try:
        if job.system == "oncurve":
            train_ours(job, watch)
        else:
            from bench.learning_trl import train_trl

            train_trl(job, watch)
    except RunOver:
        answer({"over": True, "job": asdict(job)})
    os._exit(0)  # threads of a library must not keep the process


if __name__ == "__main__":
    main()
