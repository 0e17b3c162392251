"""A run in Python that has ended holds no other processes, and is evaluated, sampled from and saved all the same."""

from pathlib import Path
from typing import Any

import psutil
import pytest

import oncurve
from oncurve import durable
from oncurve.base.errors import LostStateError

SETTINGS = {"checkpoint": {"every": 1, "keep": 10}, "kl": {"coef": 0.05}}


def of_clusters() -> list[psutil.Process]:
    """The nurseries that this process has, and what they have forked."""
    found = psutil.Process().children(recursive=True)
    return [
        each for each in found if each.status() != psutil.STATUS_ZOMBIE and "begin_nursery" in " ".join(each.cmdline())
    ]


def used(run: oncurve.TrainedRun, folder: str) -> tuple[Any, ...]:
    """What a user does with a run that has ended."""
    said = run.evaluate(2).to_metrics(), run.sample(2)[0], run.metrics[-1]["step"], len(run.report().html)
    run.save(folder)
    assert of_clusters() == []
    return said[:3]


def trained(cluster: dict[str, Any], out: str | None) -> oncurve.TrainedRun:
    """A run that had processes while it trained, and has none now."""
    seen = list[int]()
    settings = SETTINGS | {"cluster": {"kind": "host"} | cluster}
    run = oncurve.train(
        "recipe.toml", steps=2, out=out, settings=settings, on_step=lambda _: seen.append(len(of_clusters()))
    )
    assert min(seen) > 0
    assert of_clusters() == []
    return run


COPIES = {"learner_ranks": 2, "rollout_workers": 1, "shard_groups": 1, "lag": 1}
SHARDS = {"learner_ranks": 2, "sharding": "fsdp"}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [COPIES, SHARDS], ids=["copies", "shards"])
def test_a_run_that_has_ended_is_resumed_while_its_result_is_held(project: Path, processes: dict[str, Any]) -> None:
    run = trained(processes, "two")
    first = used(run, "saved")
    model = (project / "two/model/model.safetensors").read_bytes()
    assert (project / "saved/model.safetensors").read_bytes() == model
    again = oncurve.resume("two")  # finished: it is only loaded
    assert of_clusters() == []
    assert used(again, "again") == first
    assert (project / "again/model.safetensors").read_bytes() == model
    more = oncurve.resume("two", settings={"run": {"steps": 3}})
    assert [line["step"] for line in more.metrics] == [1, 2, 3]
    assert of_clusters() == []
    for each in (run, again, more):
        each.close()
        each.close()


@pytest.mark.slow
def test_a_divided_model_without_a_directory_is_saved_from_its_float32_weights(project: Path) -> None:
    with trained(SHARDS, None) as run, trained(SHARDS, "two") as other:
        run.save("saved")
        one, two = (durable.read_tensors(Path(at) / "model.safetensors") for at in ("saved", "two/model"))
        assert {name: tensor.tolist() for name, tensor in one.items()} == {n: t.tolist() for n, t in two.items()}
        assert run.evaluate().to_metrics() == other.evaluate().to_metrics()
        with pytest.raises(LostStateError, match="the ranks have ended with the training"):
            run.run.learner.move_reference(0.5)
