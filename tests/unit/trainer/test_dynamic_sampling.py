"""Dynamic sampling, a step's target of the KL, the adaptive entropy bonus: no group is lost or trained on twice."""

import json
import logging
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fakes.batches import rows_of
from fakes.learning import finished, gradient, make_learner
from fakes.loops import PROMPTS, make_loop, resumed
from fakes.tables import table
from fakes.tiny_policy import random_groups, tiny_model
from oncurve import durable
from oncurve.base.errors import ConfigError, TrainingError
from oncurve.data import PromptOrder
from oncurve.learner import LearnerConfig, LocalLearner
from oncurve.losses import OBJECTIVE_KINDS, Clipped, EntropyBonus, KLPenalty, Regularizer, has_importance_ratio
from oncurve.metrics import Metrics
from oncurve.report import RolloutIndex
from oncurve.rollout import EngineBase
from oncurve.trainer import DynamicSampling, EntropyControl, Trainer, TrainerState
from oncurve.trainer.groups.surplus import SurplusGroup, load_surplus, save_surplus
from oncurve.trainer.state import Collected
from oncurve.types import Completion, Group, Prompt, Score, TokenLoss, TokenStats


def right(score: Score) -> bool | None:
    return None if score.parts["truth"] is None else score.parts["truth"] == 1


def group(*outcomes: str) -> Group:
    """A completion per outcome: "right" or "wrong", with "cut" (truncated), "invalid", "read" (no token is trained).

    "other": another reward than the verifier applies.
    """
    completions, scores = [], []
    for index, words in enumerate(outcome.split() for outcome in outcomes):
        trained = (False, False) if "read" in words else None
        ended = "length" if "cut" in words else "eos"
        completions.append(Completion((4, 2), "", (-1.0, -1.0), ended, index, 0, trained))
        truth = float("right" in words)
        parts = {"truth": None if "other" in words else truth}
        scores.append(Score(truth - 0.1 * index, valid="invalid" not in words, parts=parts))
    return Group(Prompt(0, "", (1,)), tuple(completions), tuple(scores))


@pytest.mark.parametrize(("outcomes", "kept"), table("dynamic_sampling", "groups_are_kept"))
def test_groups_with_right_and_wrong_completions_are_kept(outcomes: tuple[str, ...], kept: bool) -> None:
    assert DynamicSampling(10, right).keeps(group(*outcomes)) == kept


def collected_of(steps: int, *, dynamic: DynamicSampling | None = None, **settings) -> list[Collected]:
    """What each of `steps` steps collects, with weights that stay."""
    loop = make_loop(dynamic=dynamic or DynamicSampling(20, None), **settings)
    loop.groups.engine.follow(loop.learner.weights())
    found = []
    for _ in range(steps):
        now = loop.collect(Metrics())
        found.append(now)
        loop.state = replace(
            loop.state, step=loop.state.step + 1, cursor=now.cursor, draw=now.draw, surplus=now.surplus
        )
    return found


def name(given: Group) -> tuple[int, int, int]:
    return given.draw, given.prompt.id, given.completions[0].sample_index


def test_every_group_is_trained_on_once_or_filtered_once_or_waiting() -> None:
    found = collected_of(30)
    assert any(now.surplus for now in found)
    settled = Counter(name(each) for now in found for each in now.groups)
    assert set(settled.values()) == {1}
    assert not {name(each) for each in waiting(found[-1])} & set(settled)
    assert len(settled) + len(found[-1].surplus) == 3 * found[-1].draw == found[-1].cursor
    for now in found:
        assert len(now.usable) == 3
        assert len(now.surplus) < 3
        assert all(len({score.reward for score in each.scores}) > 1 for each in now.usable)
        left_out = [each for each in now.groups if not any(each is kept for kept in now.usable)]
        assert all(len({score.reward for score in each.scores}) == 1 for each in left_out)


def waiting(now: Collected) -> list[Group]:
    prompts = {prompt.ids: prompt for prompt in PROMPTS}
    return [Group(prompts[each.prompt_ids], each.completions, each.scores, each.draw) for each in now.surplus]


def test_the_surplus_is_trained_on_first_and_everything_is_in_the_order_of_prompts() -> None:
    found = collected_of(30)
    for before, now in pairwise(found):
        assert list(now.usable[: len(before.surplus)]) == waiting(before)
    order = [place for now in found for place in _places(now)]
    assert order == sorted(order)


def _places(now: Collected) -> list[int]:
    """The positions of the trained groups in the order of sampling: 3 prompts per draw, in the source's order."""
    source = PromptOrder(PROMPTS, 5)
    found = []
    for each in now.usable:
        same = [place for place, prompt in enumerate(source.take(3 * each.draw, 3)[0]) if prompt == each.prompt]
        found.append(3 * each.draw + same[each.completions[0].sample_index // 4])
    return found


class Backwards(EngineBase):
    """An engine whose groups are complete in the reverse order of the prompts."""

    def __init__(self, inner) -> None:
        self.inner, self.exact = inner, True

    def follow(self, weights) -> None:
        self.inner.follow(weights)

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        groups = self.inner.generate(prompts, draw, sampling, None, first_samples)
        for index in reversed(range(len(groups))):
            on_group(index, groups[index])
        return groups


def test_arrival_does_not_decide(tmp_path: Path) -> None:
    one, two = make_loop(dynamic=DynamicSampling(20, None)), make_loop(dynamic=DynamicSampling(20, None))
    two.groups.engine = Backwards(two.groups.engine)
    for _ in range(4):
        assert one.step().groups == two.step().groups
    assert without_times(one.state) == without_times(two.state)


def without_times(state: TrainerState) -> TrainerState:
    return replace(state, seconds=0.0, metrics_bytes=0)


def test_the_counts_of_every_step_add_up_and_the_learner_trains_on_what_they_say() -> None:
    loop, carried = make_loop(dynamic=DynamicSampling(20, None)), 0.0
    for _ in range(8):
        draw = loop.state.draw
        result = loop.step()
        of = {name.partition("/")[2]: value for name, value in result.metrics.items() if name.startswith("groups/")}
        assert of["rounds"] == loop.state.draw - draw
        assert of["sampled"] == 3 * of["rounds"]
        assert of["sampled"] + carried == of["trained"] + of["filtered"] + of["dropped"] + of["surplus"]
        assert of["trained"] == sum(rows is not None for rows in result.advantages) == 3
        assert result.metrics["progress/prompts_seen"] == loop.state.cursor == 3 * loop.state.draw
        carried = of["surplus"]
        assert carried == len(loop.state.surplus)


def test_the_old_log_probs_of_surplus_groups_are_the_samplers() -> None:
    loop = make_loop(dynamic=DynamicSampling(20, None))
    while not loop.state.surplus:
        loop.step()
    loop.groups.engine.follow(loop.learner.weights())
    carried = len(loop.state.surplus)
    batch = loop.score(loop.collect(Metrics()).usable, Metrics())
    stale = batch.group_ids < carried
    assert torch.equal(batch.policy_versions == loop.learner.version - 1, stale)
    assert torch.equal(batch.old_logprobs[stale], batch.rollout_logprobs[stale])
    present = loop.learner.score(batch, frozenset({"old"})).old_logprobs
    assert torch.equal(batch.old_logprobs[~stale], present[~stale].double())


def steps_of(loop: Trainer) -> list[float]:
    """KL(π_old || π_θ) that each update of one step finds, by way of what it reports."""
    found, update = [], loop.learner.update

    def watched(minibatch):
        result = update(minibatch)
        found.append(result.metrics.result()["policy/kl_old"])
        return result

    loop.learner.update = watched
    return found


def weights(loop: Trainer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in loop.learner.optimizer.masters.values()]


def make(epochs: int, minibatches: int = 1, **config: object) -> Trainer:
    return make_loop(config={"ppo_epochs": epochs, "minibatches": minibatches, **config}, learning_rate=0.02)


def test_the_updates_after_one_that_is_too_far_are_left_out_and_nothing_else_changes() -> None:
    free = make(6)
    found = steps_of(free)
    result = free.step()
    assert "optim/updates_left_out" not in result.metrics
    assert found[0] == 0
    assert found == sorted(set(found))
    for made in (2, 4):  # updates 1 to `made` are made: the last of them is the first to find a KL above the target
        stopped, short = make(6, target_kl=(found[made - 2] + found[made - 1]) / 2), make(made)
        metrics = stopped.step().metrics
        short.step()
        assert metrics["optim/updates"] == made
        assert metrics["optim/updates_left_out"] == 6 - made
        assert all(map(torch.equal, weights(stopped), weights(short)))
        assert stopped.state.step == 1


@pytest.mark.parametrize("kind", [kind for kind, made in OBJECTIVE_KINDS.items() if has_importance_ratio(made())])
def test_the_kl_of_every_objective_is_that_of_its_tokens(kind: str) -> None:
    """A target in nats per token must mean the same where the ratio in the loss is that of a whole completion."""
    ratios = torch.tensor([[1.5, 0.5, 1.25], [0.8, 2.0, 7.0]], dtype=torch.float64)
    old = torch.full_like(ratios, -1.5)
    mask, advantages = torch.tensor([[True, True, True], [True, True, False]]), torch.tensor([[1.0], [-1.0]])
    batch = rows_of(mask, old_logprobs=old, rollout_logprobs=old, advantages=advantages.expand(2, 3))
    found = OBJECTIVE_KINDS[kind]()(TokenStats(old + ratios.log()), batch).stats["policy/kl_old"][batch.loss_mask]
    torch.testing.assert_close(found, (ratios - 1 - ratios.log())[batch.loss_mask])


def test_the_coefficient_grows_below_the_target_and_counts_only_there() -> None:
    # by hand, target 0.2, step 0.005: entropies of steps 1 to 6, then c and α of the step after each
    bonus = EntropyBonus(target=0.2)
    entropies = [0.15, 0.10, 0.30, 0.20, 0.30, 0.50]
    expected_c = [0.005, 0.010, 0.005, 0.005, 0.0, 0.0]
    expected_alpha = [0.005, 0.010, 0.0, 0.005, 0.0, 0.0]
    control, state, metrics = EntropyControl(bonus), TrainerState(), Metrics()
    batch = finished(make_learner(kl_coef=0.0), random_groups())
    assert control.with_coef(batch, state, metrics).entropy_coef.tolist() == [0.0] * batch.size
    for entropy, c, alpha in zip(entropies, expected_c, expected_alpha, strict=True):
        state = control.after(state, entropy)
        assert state.entropy_coef == pytest.approx(c, abs=1e-15)
        assert control.with_coef(batch, state, metrics).entropy_coef.tolist() == pytest.approx([alpha] * batch.size)
    assert control.after(state, None) == state
    assert metrics.result()["policy/entropy_coef"] == 0


def steered_learner(**settings: int) -> LocalLearner:
    regularizer = Regularizer(KLPenalty(coef=0.0), steered=True)
    return LearnerConfig(**settings).build(tiny_model(), Clipped(), regularizer, temperature=0.7)


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [8, 10**6])
def test_its_gradient_is_that_of_the_constant_bonus_in_any_split(alpha: float, tokens: int) -> None:
    constant = make_learner(kl_coef=0.0, entropy_coef=alpha)
    batch = finished(constant, random_groups(rewards=[[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]))
    given = batch.having(entropy_coef=torch.full((batch.size,), alpha, dtype=torch.float64))
    found = gradient(steered_learner(tokens_per_micro_batch=tokens), given)
    torch.testing.assert_close(found, gradient(constant, batch), atol=1e-13, rtol=1e-10)


def loop_of(bonus: EntropyBonus, folder: Path | None = None, constant: bool = False, **config: object) -> Trainer:
    reward = {"reward": lambda completions, prompts: [0.5] * len(completions)} if constant else {}
    loop = make_loop(folder, entropy=EntropyControl(bonus), steps=6, config=config, **reward)
    steered = Regularizer(KLPenalty(coef=0.0), steered=True)
    loop.learner = LearnerConfig(learning_rate=0.05).build(tiny_model(), Clipped(), steered)
    loop.outer.learner = loop.learner
    return loop


def test_a_resumed_run_has_the_same_coefficients_and_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    bonus = EntropyBonus(target=2.0, step=0.01)
    one = loop_of(bonus, whole, ppo_epochs=2)
    one.train()
    shutil.copytree(whole, cut)
    for number, path in durable.numbered(cut / "checkpoints"):
        if number > 3:
            shutil.rmtree(path)
    two = resumed(loop_of(bonus, ppo_epochs=2), cut)
    two.train()
    assert (one.state.entropy_coef, one.state.entropy) == (two.state.entropy_coef, two.state.entropy)
    masters = (loop.learner.optimizer.masters.values() for loop in (one, two))
    assert all(torch.equal(left, right) for left, right in zip(*masters, strict=True))


def test_without_a_verifier_groups_whose_rewards_differ_are_kept() -> None:
    dynamic = DynamicSampling(10, None)
    assert dynamic.keeps(group("right", "right"))
    same = group("right", "right")
    assert not dynamic.keeps(replace(same, scores=(Score(0.7), Score(0.7))))


def test_at_the_bound_a_step_trains_on_what_there_is_and_announces_it_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = make_loop(dynamic=DynamicSampling(1, None))
    with caplog.at_level(logging.WARNING, "oncurve.trainer"):
        trained = [loop.step().metrics["groups/trained"] for _ in range(4)]
    assert min(trained) < 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "filter.max_rounds = 1" in said[0]


def test_a_step_without_any_group_to_train_on_ends_the_run(tmp_path: Path) -> None:
    loop = make_loop(tmp_path, DynamicSampling(2, None), reward=lambda completions, prompts: [0.5] * len(completions))
    with pytest.raises(TrainingError, match=r"none of the 6 groups that were sampled in 2 rounds \(filter\.max_rounds"):
        loop.train()
    assert loop.state.step == 0
    assert len(list(RolloutIndex(tmp_path).groups(1))) == 6


def test_surplus_groups_are_the_same_after_a_checkpoint(tmp_path: Path) -> None:
    steps = {"step_ends": (0, 1), "step_rewards": (0.1, 1 / 3), "step_offsets": (2, 5)}
    score = Score(1 / 3, True, {"a": None, "b": 0.1}, "none: é\ud800", extras={"a/x": [1, None]}, **steps)
    score = replace(score, part_steps={"a": ((2, 0.1), (5, 1 / 3))}, weights=(0.1, 2.0))
    completion = Completion((4, 2), "4\n", (-1 / 3, -1e-300), "stop", 7, 12, (True, False))
    others = replace(completion, trained=None, kept_sizes=(1, -1), kept_ids=b"\x04\0\0\0")
    given = Group(PROMPTS[3], (completion, others), (score, Score(0.0, False)), draw=11)
    surplus = (SurplusGroup.of(40, given), *(SurplusGroup.of(i, each) for i, each in enumerate(random_groups())))
    save_surplus(tmp_path, surplus)
    state = TrainerState(step=3, cursor=9, surplus=surplus)
    assert TrainerState.from_json(json.loads(json.dumps(state.to_json())), load_surplus(tmp_path)) == state
    assert load_surplus(tmp_path / "none") == ()


def test_a_group_whose_prompt_has_changed_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    loop = make_loop(dynamic=DynamicSampling(20, None))
    while not loop.state.surplus:
        loop.step()
    (first, *_) = loop.state.surplus
    loop.state = replace(loop.state, surplus=(replace(first, prompt_ids=(1, 2, 3)),))
    with caplog.at_level(logging.WARNING, "oncurve.trainer"):
        result = loop.step()
    assert result.metrics["groups/sampled"] == len(result.groups) + len(loop.state.surplus)
    assert "another prompt in its place" in caplog.text


def test_a_run_follows_the_entropy_that_it_logs_and_raises_it() -> None:
    bonus = EntropyBonus(target=2.35, step=0.5)  # log 11 = 2.398 is the most there is
    loop, c, before = loop_of(bonus, constant=True), 0.0, None
    entropies = []
    for _ in range(6):
        metrics = loop.step().metrics
        used = c if before is not None and before <= bonus.target else 0.0
        assert metrics["policy/entropy_coef"] == pytest.approx(used, abs=1e-12)
        before = metrics["policy/entropy"]
        entropies.append(before)
        c = max(0.0, c + 0.5 if before < bonus.target else c - 0.5)
    assert entropies[0] < bonus.target
    assert entropies[-1] > entropies[0] + 0.2


def test_minibatches_count_and_a_target_that_is_never_reached_leaves_none_out() -> None:
    loop = make(2, minibatches=8, target_kl=1e9)  # three groups make three minibatches
    metrics = loop.step().metrics
    assert (metrics["optim/updates"], metrics["optim/updates_left_out"]) == (6, 0)


class Silent(Clipped):
    """An objective that reports no KL."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, stats, batch):
        return TokenLoss(super().__call__(stats, batch).loss)


def test_an_objective_that_reports_no_kl_is_refused() -> None:
    loop = make(2, target_kl=0.1)
    loop.learner.objective = Silent()
    with pytest.raises(ConfigError, match=r"learner\.target_kl: the objective reports no policy/kl_old"):
        loop.step()
