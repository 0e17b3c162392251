"""PPO as a run: a critic beside the policy, the KL in the reward and steered, and its state in the checkpoint."""

from pathlib import Path

import pytest
import torch

import oncurve
from fakes.tables import table
from oncurve import durable
from oncurve.config.loading import load_config
from oncurve.config.sentences.plan import explain, plan
from oncurve.learner import ActorCritic
from oncurve.models import tiny
from oncurve.report import read_run
from oncurve.run.assembly import assemble
from oncurve.run.session import create_directory

PPO = Path(__file__).parents[1] / "recipes" / "ppo.toml"
SMALL = table("ppo", "small")


def test_a_run_with_a_critic_and_a_steered_kl_in_the_reward(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config, base = load_config(PPO, SMALL)
    with assemble(config, base) as run:
        create_directory(run, out)
        assert isinstance(run.learner, ActorCritic)
        run.train()
        assert run.learner.version == 4 * 2 - 1  # one update warmed the critic up
        coefficient = run.trainer.state.kl_coef
    metrics = read_run(out).metrics
    assert all({"critic/loss", "critic/error", "critic/grad_norm", "policy/kl_coef"} <= line.keys() for line in metrics)
    coefficients = [line["policy/kl_coef"] for line in metrics]
    assert coefficients[0] == 0.05
    # the KL is 0 at first, far below the target, so beta falls by a fifth of 12 completions over the horizon
    assert coefficients[1] == pytest.approx(0.05 * (1 - 0.2 * 12 / 100))
    assert coefficient is not None
    assert coefficient != coefficients[-1]
    stored = durable.read_json(out / "checkpoints" / "step-000004" / "state.json")
    assert stored["trainer"]["kl_coef"] == coefficient
    assert stored["learner"]["critic"]["steps"] == 8
    assert durable.read_tensors(out / "checkpoints" / "step-000004" / "critic.safetensors")


def test_the_equation_and_the_plan_of_the_preset() -> None:
    config, _ = load_config("ppo")
    said = explain(config)
    assert [words for words in table("ppo", "equation") if words not in said] == []
    assert "0.04 × (log π_old - log π_ref) subtracted from each token's reward" in "\n".join(plan(config))


def test_a_critic_does_with_workers_where_there_is_one_rank() -> None:
    with assemble(*load_config(PPO, [*SMALL, "cluster.rollout_workers=1", "rollout.group_size=1"])) as run:
        assert isinstance(run.learner, ActorCritic)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_critic_learns_the_same_while_workers_sample(kind: str) -> None:
    sizes = {"data.kind": "task", "data.prompts_per_step": 2, "rollout.group_size": 2, "rollout.max_new_tokens": 8}
    rest = {"run.threads": 1, "model.dtype": "float32", "kl.coef": 0, "eval.every": 0, "checkpoint.every": 0}
    critic = {"advantage.kind": "gae", "critic.kind": kind, "learner.learning_rate": 1e-3}
    found = []
    for workers in ({}, {"cluster.rollout_workers": 1, "cluster.worker_threads": 1}):
        given = {**sizes, **rest, **critic, **workers}
        with oncurve.train(model=tiny.path(), reward=[{"kind": "task"}], steps=2, settings=given) as run:
            found.append({name: value.clone() for name, value in run.model.state_dict().items()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
