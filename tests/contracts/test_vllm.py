"""`cluster.engine = "vllm"` against servers of vLLM's routes: oncurve's own by default, real ones by `make vllm-check`.

Both are started by the program `vllm` that is first on PATH.
"""

import threading
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fakes.tables import table
from fakes.vllm_server import ARGUMENTS, REAL, put_first, tiny_llama as model
from fakes.waiting import until
from oncurve.base.errors import ConfigError, TrainingError
from oncurve.cluster import HostCluster
from oncurve.cluster.vllm.engine import VllmEngine
from oncurve.cluster.vllm.server import VllmServer
from oncurve.cluster.workers import FleetEngine
from oncurve.models import CausalModel, LocalWeights
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt

SAMPLING = Sampling(group_size=3, max_new_tokens=6, temperature=0.7, max_concurrent=8)
EOS = tuple(range(8))
PROMPTS = [Prompt(number, "", (30 + number, 3, 40)) for number in range(5)]


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return put_first(tmp_path, monkeypatch)


def engine(seconds: float, *more: str) -> VllmEngine:
    return VllmEngine(SAMPLING, eos_ids=EOS, seed=5, arguments=(*ARGUMENTS, *more), seconds=seconds)


def assert_logprobs_are_those_of(policy: CausalModel, groups: list[Group], within: float = 1e-4) -> None:
    one = torch.zeros(1, dtype=torch.int64)
    for group in groups:
        for row in group.completions:
            ids, prompt = torch.tensor(row.ids), torch.tensor(group.prompt.ids)
            with torch.no_grad():
                hidden = policy.completion_hidden([prompt], one, ids[None], torch.tensor([len(ids)]))
                right = (policy.logits(hidden) / SAMPLING.temperature).log_softmax(-1).gather(1, ids[:, None])[:, 0]
            assert torch.tensor(row.logprobs).allclose(right, atol=within, rtol=0)


def assert_only_the_key_opens(server: VllmServer) -> None:
    """The routes of vLLM's own key, those that control the server and those that anyone may read; and no other process
    can read the key."""
    for route in ("/inference/v1/generate", "/v1/models", "/collective_rpc", "/pause", "/health", "/metrics"):
        for key in ("none", "guessed"):
            assert VllmServer(server.address, key, server._minder).answer("POST", route, None, 60.0)[0] == 401
    (key,) = {server._headers["Authorization"].removeprefix("Bearer ")}
    words = [one.cmdline() for one in psutil.Process().children(recursive=True)]
    assert len(key) > 40
    assert not any(key in word for word in chain(*words))


def test_as_many_rows_as_the_settings_say_are_asked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier opens only if so many requests wait at it; of one more it would have two rounds."""
    for groups, size, most, requests in ((100, 1, 100, 100), (4, 4, 8, 2), (2, 8, 3, 1)):
        at_a_time, counts = threading.Barrier(requests, timeout=60.0), []
        served = VllmEngine(Sampling(group_size=size, max_new_tokens=1, max_concurrent=most))
        served._model = model()

        def ask(*asked: Any, barrier: Any = at_a_time, counts: list[int] = counts) -> Any:
            barrier.wait()
            counts.append(asked[-1])
            return [([9], [-1.0])] * asked[-1]

        monkeypatch.setattr(served, "_ask", ask)
        found = served.generate([Prompt(number, "", (9,)) for number in range(groups)], draw=0)
        assert [row.sample_index for group in found for row in group.completions] == list(range(size)) * groups
        assert sum(counts) == groups * size
        assert max(counts) == min(size, most)


@pytest.mark.slow
def test_a_server_samples_from_the_weights_that_it_was_given_last(orders: Path) -> None:
    """Token in, token out: log-probs of the settings' temperature, endings, seeds; and the same after updates."""
    first, second = model(0), model(1)
    with engine(900.0, "--max-model-len", "64") as served:
        found = []
        for version, policy in enumerate((first, second, first)):
            served.follow(LocalWeights(policy, version))
            assert served.check() < 1e-4
            groups = served.generate(PROMPTS, draw=0)
            assert_logprobs_are_those_of(policy, groups)
            found.append([[row.ids for row in group.completions] for group in groups])
            for row in (row for group in groups for row in group.completions):
                assert row.policy_version == version
                assert row.ended == ("eos" if row.ids[-1] in EOS else "length")
        assert_only_the_key_opens(served._server)
        assert found[0] == found[2] != found[1]
        assert {ids[-1] in EOS for ids in chain(*found[0], *found[1])} == {False, True}
        assert len({ids for group in found[0] for ids in group}) > len(PROMPTS)
        for most in (1, 2):  # requests for one completion, for two and one, as for a group
            pieces = served.generate(PROMPTS, draw=0, sampling=SAMPLING.model_copy(update={"max_concurrent": most}))
            assert [[row.ids for row in group.completions] for group in pieces] == found[2]
        likeliest = served.generate(PROMPTS[:1], draw=0, sampling=SAMPLING.model_copy(update={"temperature": 0.0}))
        assert len({row.ids for row in likeliest[0].completions}) == 1
        long = Prompt(9, "", tuple(range(10, 69)))
        with pytest.raises(ConfigError, match=r"takes 64 tokens.*59 of a prompt and 6 new ones.*--max-model-len"):
            served.generate([*PROMPTS, long], draw=0)
        part = served.generate(PROMPTS[3:4], draw=0)
        assert [row.ids for row in part[0].completions] == found[2][3]  # a shard that is drawn again
        assert (
            served.generate(PROMPTS[:1], draw=1)[0].completions != served.generate(PROMPTS[:1], draw=0)[0].completions
        )


@pytest.mark.slow
@pytest.mark.skipif(REAL is not None, reason="a real server takes no orders")
def test_answers_that_cannot_be_used_say_what_is_wrong(orders: Path) -> None:
    with engine(120.0) as served:
        served.follow(LocalWeights(model(), 0))
        for action, words in table("vllm", "orders"):
            (orders / f"{action}-0").touch()
            with pytest.raises(TrainingError, match=words):
                served.generate(PROMPTS, draw=0)
        (orders / "stale-0").touch()
        with pytest.raises(TrainingError, match="does not sample from these weights"):
            served.follow(LocalWeights(model(1), 1))
        served._seconds = 2.0
        (orders / "hang-0").touch()
        with pytest.raises(TrainingError, match=r"/inference/v1/generate did not answer within 2 seconds"):
            served.generate(PROMPTS, draw=0)


@pytest.mark.slow
@pytest.mark.skipif(REAL is not None, reason="a real server takes no orders")
def test_a_server_that_is_killed_in_a_shard_is_replaced_and_the_shard_has_the_same_tokens(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither server nor folder is left, of none of the workers."""
    settings: dict[str, Any] = {"rollout_workers": 1, "shard_groups": 3, "engine": "vllm", "wait_seconds": 120.0}

    def build() -> InProcessEngine:
        return InProcessEngine(SAMPLING, eos_ids=EOS, seed=5)

    found = []
    with HostCluster(**settings).rollout_engine(build(), build, SAMPLING, None, EOS, 5, lambda: 0.0) as fleet:
        assert isinstance(fleet, FleetEngine)
        assert not fleet.exact
        for step, action in enumerate([None, "SIGKILL"]):
            if action:
                (orders / f"{action}-0").touch()
            fleet.follow(LocalWeights(model(), step))
            found.append([[row.ids for row in group.completions] for group in fleet.generate(PROMPTS, draw=0)])
        assert fleet.measured()["cluster/shards_redone"] == 1
        servers = [child for child in psutil.Process().children(recursive=True) if "serve" in child.cmdline()]
        assert len(servers) == 1
        folder = Path(servers[0].cmdline()[servers[0].cmdline().index("serve") + 1]).parent
        assert [file.name for file in folder.glob("version-*")] == ["version-1"]
    assert found[0] == found[1]
    assert psutil.wait_procs(servers, timeout=300)[1] == []
    until(lambda: not folder.exists())
    told = capfd.readouterr().err
    assert "a worker was lost: http://127.0.0.1" in told
    assert "same bits" not in told
