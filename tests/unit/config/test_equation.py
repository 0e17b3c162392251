from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from fakes.tables import table
from oncurve.config.loading import load_config
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.plan import RunFacts, explain, plan
from oncurve.models.loading import ModelConfig
from oncurve.rollout import LocalEngine


def config(*overrides: str, recipe: str | None = None) -> RunConfig:
    return load_config(recipe, overrides)[0]


def equation(*overrides: str, recipe: str | None = None) -> str:
    return explain(config(*overrides, recipe=recipe)).splitlines()[0]


def said(*overrides: str, recipe: str | None = None, facts: RunFacts | None = None) -> str:
    return "\n".join(plan(config(*overrides, recipe=recipe), facts))


def test_the_equation_has_the_numbers_in():
    assert equation() == "J(θ) = 1/N Σ_i Σ_t { min(ρ_it Â_it, clip(ρ_it, 0.8, 1.2) Â_it) - 0.001 KL_it }"
    assert equation(recipe="grpo_paper") == (
        "J(θ) = 1/B Σ_i 1/|o_i| Σ_t { min(ρ_it Â_it, clip(ρ_it, 0.8, 1.2) Â_it) - 0.04 KL_it }"
    )
    assert equation(recipe="dr_grpo") == ("J(θ) = 1/(B·512) Σ_i Σ_t { min(ρ_it Â_it, clip(ρ_it, 0.8, 1.2) Â_it) }")
    assert equation(recipe="rlox") == "J(θ) = 1/B Σ_i Σ_t { Â_it log π_θ } - 0.1 · 1/N Σ_i Σ_t KL_it"


@pytest.mark.parametrize(("chosen", "written"), table("equation", "family"))
def test_the_familys_objectives_are_in_the_equation(chosen, written):
    kind, *settings = chosen
    shown = explain(config(f"objective.kind={kind}", *settings, "kl.coef=0"))
    assert shown.splitlines()[0] == f"J(θ) = 1/N Σ_i Σ_t {{ {written} }}"
    if kind == "gmpo":
        assert "min(ρ_it, e^0.4) where Â_i > 0, else max(ρ_it, e^-0.2)" in shown
    if kind == "dppo":
        assert "0 where p_μ ln(p_μ/p) + (1 - p_μ) ln((1 - p_μ)/(1 - p)) > 0.05" in shown
        assert "π_old" not in shown


class Inexact(LocalEngine):
    exact: ClassVar[bool] = False


def test_every_letter_is_explained():
    text = explain(config("rewards=[{kind='math', weight=0.5}]", "learner.minibatches=4"))
    assert [words for words in table("equation", "letters") if words not in text] == []
    assert "here π_θ itself" not in text
    assert "π_old   the policy that sampled the completions, here π_θ itself, so" in explain(RunConfig())
    assert "the std of the batch" in explain(config("advantage.scale=batch"))
    inexact = RunConfig().model_copy(update={"engine": Inexact()})
    assert "here π_θ itself" not in explain(inexact)
    assert "about 85 completions" in explain(config("learner.minibatches=3"))


def test_the_plan_says_when_clipping_can_bind():
    assert (
        "32 prompts × 8 = 256 completions per step, 1 minibatch × 1 pass = 1 update: with one update per rollout "
        "the ratio is 1 and clipping cannot bind." in said()
    )
    assert (
        "4 minibatches × 2 passes = 8 updates, each at the whole learning rate: a step goes up to 8 times as far as "
        "one; clipping can bind from the 2nd update; "
        "the old log-probs are recomputed before the first update."
        in said("learner.minibatches=4", "learner.ppo_epochs=2")
    )


def test_every_step_is_not_every_1_steps():
    plans = (
        said("eval.every=1", "data.kind=task", "checkpoint.every=1", "reference.every=1"),
        said("checkpoint.every=2"),
    )
    assert "Evaluation before step 1 and every step on the held-out prompts" in plans[0]
    assert "A checkpoint every step, the last 2 kept." in plans[0]
    assert "A checkpoint every 2 steps, the last 2 kept." in plans[1]


def test_the_plan_says_how_truncated_sampling_decodes_on_cuda(monkeypatch):
    without = "without CUDA graphs"
    assert without not in said("rollout.top_p=0.9")
    monkeypatch.setattr(ModelConfig, "torch_device", torch.device("cuda"))
    assert without in said("rollout.top_p=0.9", "model.dtype=float32")
    assert without not in said("model.dtype=float32")


def test_what_looks_like_a_mistake_is_noted():
    cases = table("equation", "noted")
    for words, overrides in cases.items():
        assert any(line.startswith("note: ") and words in line for line in said(*overrides).splitlines()), words
    assert "a step takes some of them more than once" in said(facts=RunFacts(rows=10))
    assert "note: " not in said()
