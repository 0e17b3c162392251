"""Whole runs on the pretended GPU leave the metrics and the weights that they leave on the CPU.

The device refuses tensors of two devices, and captures refuse whatever waits, so a run that ends has made no such
mistake. The two forms add in another order. In float64 that is 1e-15 of a number, and a run of two steps multiplies it
by less than a million; in float32 it is 1e-7, and AdamW's square roots of small averages double the digits that are
lost. In bfloat16 a rounding may draw another token, so only the figures of one run are checked against each other.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import oncurve
from fakes import pretended_gpu
from fakes.architectures import ARCHITECTURES, architecture, fast_model, prompts_of
from fakes.classifiers import lay_down
from fakes.decoding import request
from fakes.reward_examples import spoilt
from fakes.solutions import solution
from fakes.tables import table
from oncurve.models.classifiers import load
from oncurve.models.loading import weights
from oncurve.randomness import row_keys
from oncurve.reward_models import LabelledSteps, OutcomeModel, PreferencePair, ProcessModel
from oncurve.tasks.arithmetic import problems

CPU = torch.device("cpu")
EXACT, SINGLE = 1e-9, 1e-3

SIZES = table("whole_runs", "sizes")
PROMPTS = [{"prompt": [3 + index, 4, 5, 6][: 2 + index % 3]} for index in range(12)]
OF_THE_CLOCK = ("time/", "memory/", "tokens/per_second", "cluster/", "policy/mismatch")

CASES: dict[str, tuple[str | list[str], dict[str, Any]]] = table("whole_runs", "cases")


SLOW = set(table("whole_runs", "slow"))
"""What adds to the others an objective whose maths is the CPU's, or a mixture of what they have."""


def marked(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in cases]


def rewarding(of: int = 7) -> Callable[[list[int]], float]:
    """A reward that runs in this process, being a closure. It is 1 for some, and all but never equal in a group."""
    return lambda completion_ids: float(completion_ids[-1] % 2) or sum(completion_ids) % of / 10


def compare(ours: oncurve.TrainedRun, theirs: oncurve.TrainedRun, close: float) -> None:
    assert len(ours.metrics) == len(theirs.metrics)
    for mine, wanted in zip(ours.metrics, theirs.metrics, strict=True):
        mine, wanted = ({k: v for k, v in x.items() if not k.startswith(OF_THE_CLOCK)} for x in (mine, wanted))
        assert mine == pytest.approx(wanted, rel=close, abs=close)
    mine, wanted = ours.model.state_dict(), theirs.model.state_dict()
    assert {value.device.type for value in mine.values()} == {"pretended"}
    assert mine.keys() == wanted.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value.cpu(), wanted[name], rtol=close, atol=close)


def trained(case: str, device: torch.device) -> oncurve.TrainedRun:
    preset, settings = CASES[case]
    module = architecture("qwen2", torch.float64).to(device)
    return oncurve.train(
        model=module, data=PROMPTS, reward=rewarding(), preset=preset, steps=2, settings={**SIZES, **settings}
    )


@pytest.mark.parametrize("case", marked(CASES))
def test_a_run_is_that_of_the_cpu(case: str, gpu: torch.device) -> None:
    compare(trained(case, gpu), trained(case, CPU), EXACT)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_decodes_in_graphs_what_the_cpu_decodes(name: str, captures: pretended_gpu.Captures) -> None:
    keys = row_keys(0, 1, torch.arange(3).repeat_interleave(2), torch.arange(2).repeat(3))
    asked = request(prompts_of(4, 9, 1), keys, [5], 20, temperature=0.8)
    models = [fast_model(name, torch.float64, device=device) for device in (pretended_gpu.device(), CPU)]
    ours, theirs = (model.token_loop()(asked) for model in models)
    assert captures.made
    assert [row.ids for row in ours] == [row.ids for row in theirs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay_down(tmp_path_factory.mktemp("model"), "causal")


TEXTS: dict[str, dict[str, Any]] = table("whole_runs", "texts")


def loaded(
    case: str, device: torch.device, folder: Path, patch: pytest.MonkeyPatch, out: Path | None = None
) -> oncurve.TrainedRun:
    patch.setattr(weights, "device_of", lambda *_: device)
    settings = {**SIZES, "eval.every": 0, "model.dtype": "float32", "checkpoint.every": 1, **TEXTS[case]}
    rows = [{"prompt": f"{index}+{index % 3}="} for index in range(16)]
    return oncurve.train(model=folder, data=rows, reward=rewarding(), steps=2, settings=settings, out=out)


@pytest.mark.parametrize("case", [name for name, settings in TEXTS.items() if "model.dtype" not in settings])
def test_a_model_from_a_folder(
    case: str, gpu: torch.device, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = loaded(case, gpu, folder, monkeypatch, tmp_path / "gpu")
    compare(ours, loaded(case, CPU, folder, monkeypatch, tmp_path / "cpu"), SINGLE)
    on = {"run": {"steps": 3}}
    theirs = oncurve.resume(tmp_path / "cpu", reward=rewarding(), settings=on)
    monkeypatch.setattr(weights, "device_of", lambda *_: gpu)
    compare(oncurve.resume(tmp_path / "gpu", reward=rewarding(), settings=on), theirs, SINGLE)


@pytest.mark.parametrize("case", marked(name for name, settings in TEXTS.items() if "model.dtype" in settings))
def test_bfloat16(case: str, gpu: torch.device, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights.ModelConfig(path=str(folder), dtype="bfloat16", device="cpu").build().model.module.state_dict()
    run = loaded(case, gpu, folder, monkeypatch)
    for line in run.metrics:
        assert all(map(math.isfinite, line.values()))
        assert 0 < line["policy/mismatch"] < 0.02
    moved = [name for name, value in run.model.state_dict().items() if not torch.equal(value.cpu(), before[name])]
    assert len(moved) == len(before)


@pytest.mark.parametrize("kind", ["outcome", "process"])
def test_a_reward_model(kind: str, gpu: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problems("train", 6)
    if kind == "outcome":
        examples = [PreferencePair(p.prompt, solution(p), spoilt(p, index)) for index, p in enumerate(asked)]
    else:
        examples = [LabelledSteps(p.prompt, solution(p), (4, len(solution(p))), (1.0, 0.0)) for p in asked]
    model = OutcomeModel if kind == "outcome" else ProcessModel
    settings = model(path=str(lay_down(tmp_path, "causal")), dtype="float32", learning_rate=1e-3)
    found = {}
    for device in (gpu, CPU):
        monkeypatch.setattr(load, "device_of", lambda *_, device=device: device)
        learner = settings.build(settings.load(new_head=True), 10)
        results = [learner.update(examples) for _ in range(2)]
        found[device.type] = [
            m[key] for m in (*(r.metrics.result() for r in results), learner.measure(examples)) for key in sorted(m)
        ]
    assert found["pretended"] == pytest.approx(found["cpu"], rel=SINGLE, abs=SINGLE)
