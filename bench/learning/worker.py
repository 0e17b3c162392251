"""One run of the learning comparison, in a process of its own: `python -m bench.learning.worker JOB`.

It answers with one JSON line per evaluation. The clock starts after the libraries are imported and the model is loaded.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from bench.learning.watch import Job, RunOver, Watch

__all__ = ["main"]


def train_ours(job: Job, watch: Watch) -> None:
    """The recipe as oncurve runs it."""
    from oncurve.run.assembly import assemble

    config, base = job.config()
    with assemble(config, base) as run:
        about = {"dtype": str(run.loaded.dtype), "path": run.loaded.model.path_reason}
        watch.begin(run.save_model, **about)
        while True:
            watch.start()
            metrics = run.trainer.step().metrics
            watch.stop(metrics["reward/mean"], run.save_model)


def main() -> None:
    """Run the job on the command line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
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
            from bench.learning.trl import train_trl

            train_trl(job, watch)
    except RunOver:
        answer({"over": True, "job": asdict(job)})
    os._exit(0)  # threads of a library must not keep the process


if __name__ == "__main__":
    main()
