"""Memory of each rank of a learner in shards, by phase: `python -m bench.cluster.fsdp 38M --ranks 1 2 4 --out FILE`.

Writes JSON: for each number of ranks a list with one entry per phase, which has of every rank the peak of its own
memory in the phase, its own memory after it, and what it shares with other processes, in bytes. Phase "process" is the
run's own process before it has a model; "start" begins with the model in rank 0's memory. Rank 0 also has the whole
model that engines sample from. Two updates are made of 4 rows of 64 tokens, with a KL term and its reference. With
`--lora-rank` an adapter of all linear layers is trained, and the model with the adapter off is the reference.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.cluster.memory import memory_of_ranks, process_memory
from bench.models import SIZES
from oncurve.advantages import GroupAdvantage
from oncurve.batching import collate
from oncurve.cluster import HostCluster
from oncurve.cluster.sharding.sharded import ShardedLearner
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import Clipped, KLPenalty, Regularizer, TokenMean
from oncurve.models import CausalModel, LoraSettings, wrap
from oncurve.models.adapters import put_adapter
from oncurve.types import Completion, Group, Prompt, Score, TrainBatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT, LENGTH, ROWS = 8, 56, 4


def make_model(size: str, lora_rank: int) -> CausalModel:
    """Return a model of random weights, in float32; with an adapter where `lora_rank` is not 0."""
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(0)
    module = Qwen2ForCausalLM(SIZES[size].config())
    return wrap(module, adapter=put_adapter(module, LoraSettings(rank=lora_rank), 0) if lora_rank else None)


def make_learner(
    model: CausalModel, dtype: str, kl_coef: float, tokenizer: object = None, make: type[LocalLearner] = LocalLearner
) -> Any:
    """Return a learner of `model`."""
    return LearnerConfig(tokens_per_micro_batch=512, gradient_checkpointing=True).build(
        model,
        Clipped(),
        Regularizer(KLPenalty(estimator="k3", coef=kl_coef), 0.0),
        make=make,
        dtype=DTYPES[dtype],
    )


def made_up_batch(vocabulary: int) -> TrainBatch:
    """Return two groups of two completions of random tokens."""
    draw = torch.Generator().manual_seed(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (count,), generator=draw).tolist())

    groups = [
        Group(
            Prompt(number, "", ids(PROMPT)),
            tuple(Completion(ids(LENGTH), "", (-1.0,) * LENGTH, "length", row, 0) for row in range(ROWS // 2)),
            tuple(Score(float(row % 2)) for row in range(ROWS // 2)),
        )
        for number in range(2)
    ]
    return collate(groups)


def measure(size: str, dtype: str, kl_coef: float, lora_rank: int, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Return each phase with the bytes of every rank."""
    import transformers.models.qwen2.modeling_qwen2 as imported

    assert imported
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = [{"phase": "process", "ranks": [process_memory()]}]
    cluster, model = HostCluster(learner_ranks=ranks, sharding="fsdp"), make_model(size, lora_rank)
    process_memory()  # what making it took does not count
    learner = cluster.learner(partial(make_learner, model, dtype, kl_coef))
    assert isinstance(learner, ShardedLearner)

    def phase(name: str, work: Callable[[], object]) -> None:
        work()
        found.append({"phase": name, "ranks": memory_of_ranks()})

    try:
        phase("start", lambda: None)
        batch = made_up_batch(SIZES[size].vocabulary)
        scored = learner.score(batch, frozenset({"old", "reference"}))
        phase("score", lambda: learner.score(batch, frozenset({"old", "reference"})))
        scored = scored.with_advantages(GroupAdvantage()(scored))
        scored = scored.with_weights(TokenMean()(scored))
        phase("first update", lambda: learner.update(scored))
        phase("second update", lambda: learner.update(scored))
        folder.mkdir(parents=True, exist_ok=True)
        phase("save", lambda: learner.save(folder))
        phase("export", lambda: learner.export(folder / "model"))
    finally:
        learner.close()
    return found


def main() -> None:
    """Measure, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--kl-coef", type=float, default=0.1)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    result = {
        "size": given.size,
        "dtype": given.dtype,
        "kl_coef": given.kl_coef,
        "lora_rank": given.lora_rank,
        "rows": ROWS,
        "tokens_per_row": PROMPT + LENGTH,
        "machine": f"{platform.machine()}, one thread per rank, shared",
        "torch": torch.__version__,
        "phases_by_ranks": {},
    }
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory() as folder:
            if len(given.ranks) == 1:
                found = measure(given.size, given.dtype, given.kl_coef, given.lora_rank, ranks, Path(folder) / "c")
            else:
                found = measured_apart(given, ranks, Path(folder) / "ranks.json")
        result["phases_by_ranks"][str(ranks)] = found
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def measured_apart(given: argparse.Namespace, ranks: int, out: Path) -> list[dict[str, Any]]:
    """Return `measure` in a process of its own, which has no memory of another number of ranks."""
    settings = ["--ranks", str(ranks), "--dtype", given.dtype, "--kl-coef", str(given.kl_coef)]
    settings += ["--lora-rank", str(given.lora_rank), "--out", str(out)]
    subprocess.run([sys.executable, "-m", "bench.cluster.fsdp", given.size, *settings], check=True)
    found: list[dict[str, Any]] = json.loads(out.read_text())["phases_by_ranks"][str(ranks)]
    return found


if __name__ == "__main__":
    main()
