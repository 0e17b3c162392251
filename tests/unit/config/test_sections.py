"""`[cluster]`, `[filter]`, `[iterative]`, `[reward_model]`: what goes together, and what the plan says of it."""

from collections.abc import Sequence

import pytest

from fakes.messages import message_of
from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.plan import explain, plan
from oncurve.run.loop import ScoredBy, dynamic_sampling
from oncurve.types import Completion, Group, Prompt, Score

HOST = ("cluster.kind=host", "rewards=[{kind='task'}]")


def of_cluster(*words: str) -> str:
    return " ".join(plan(load_config(None, [*HOST, *words])[0]))


def test_the_plan_says_what_a_step_trains_and_whether_that_saves_time() -> None:
    text = of_cluster("cluster.lag=2", "cluster.rollout_workers=3")
    assert "Step n trains what the weights after step n - 3 wrote, exactly; those of up to 2 steps ahead" in text
    assert "without rollout_workers that saves no time" in of_cluster("cluster.lag=1")
    assert "wrote, exactly" not in of_cluster()


def test_a_lag_that_nothing_corrects_is_noted() -> None:
    note = "note: cluster.lag = 1: the older weights that sample are the old policy of the objective's ratio"
    text = of_cluster("cluster.lag=1")
    assert note in text
    assert "completions are by older weights (cluster.lag), so clipping can bind from the 1st update" in text
    none = "note: cluster.lag = 1: nothing corrects for the older weights that sample; set correction.kind"
    assert none in of_cluster("cluster.lag=1", "objective.kind=reinforce")
    text = of_cluster("cluster.lag=1", "correction.kind=truncated")
    assert note not in text
    assert "the ratio is 1 and clipping cannot bind" in text
    assert note not in of_cluster()


def test_ranks_that_divide_the_model_need_no_gradient_shards() -> None:
    assert "An update is made by 9 processes" in of_cluster("cluster.learner_ranks=9", "cluster.sharding=fsdp")
    with pytest.raises(ConfigError, match=r"cluster.learner_ranks: a rank without a shard"):
        of_cluster("cluster.learner_ranks=9")


def test_workers_without_a_shard_are_noted() -> None:
    note = "note: of the 5 workers 3 will have nothing to do: the 12 groups of a step are decoded in fewer shards"
    assert note in of_cluster("cluster.rollout_workers=5", "data.prompts_per_step=12")
    assert "nothing to do" not in of_cluster("cluster.rollout_workers=2", "data.prompts_per_step=12")
    assert "nothing to do" not in of_cluster(
        "cluster.rollout_workers=5", "data.prompts_per_step=12", "cluster.shard_groups=2"
    )


@pytest.mark.parametrize(("words", "cause"), table("iterative_settings", "without_effect"))
def test_keys_of_processes_that_there_are_not_are_noted_or_refused(words: list[str], cause: str) -> None:
    key = words[0].partition("=")[0]
    more = {"kind": "host", "sharding": "fsdp"} if "sharding" in cause else {"kind": "host"}
    config, _ = load_config(None, words, settings={"cluster": more, "rewards": [{"kind": "task"}]})
    assert f"note: {key} has no effect: " in " ".join(plan(config))
    with pytest.raises(ConfigError, match=rf"{key}: set to no effect: "):
        of_cluster(*words, cause)
    assert "has no effect" not in of_cluster(*words, "cluster.rollout_workers=2", "cluster.learner_ranks=2")


ON = "filter.dynamic_sampling=true"


def loaded(*words: str) -> RunConfig:
    return load_config(None, [ON, "data.prompts_per_step=4", "rewards=[{kind='task'}]", *words])[0]


def said(*words: str) -> str:
    return " ".join(plan(loaded(*words)))


def test_it_is_refused_with_iterations_and_without_effect_a_bound_is_too() -> None:
    own = ["rewards=[{kind='model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=outcome"]
    with pytest.raises(ConfigError, match="a group that waits for the next iteration"):
        load_config(None, [ON, *own, "iterative.steps=5", "eval.verifier=truth", "reward_model.path=m"])
    with pytest.raises(ConfigError, match=r"filter\.max_rounds: set to no effect"):
        load_config(None, ["filter.dynamic_sampling=false", "filter.max_rounds=3"])


def test_the_plan_names_the_verifier_the_bound_and_the_worst_case() -> None:
    text = said("filter.max_rounds=5")
    assert [words for words in table("sections", "verifier") if words not in text] == []
    assert "note: filter" not in text
    assert "groups whose rewards differ (no reward is the verifier)" in said("rewards=[{kind='model', path='m'}]")


def test_the_verifier_decides_whatever_it_weighs_and_without_one_the_reward() -> None:
    shaped = "rewards=[{kind='task', name='truth', weight=0.5}, {kind='regex', pattern='w', name='form'}]"
    dynamic = dynamic_sampling(loaded(shaped, "filter.mask_truncated=true"))
    assert (dynamic.max_rounds, dynamic.mask_truncated) == (10, True)
    assert dynamic.correct is not None
    assert dynamic.correct(Score(0.5, parts={"truth": 1.0, "form": 0.0}))
    assert not dynamic.correct(Score(1.0, parts={"truth": 0.0, "form": 1.0}))
    without = dynamic_sampling(loaded("rewards=[{kind='model', path='m'}]"))
    assert without.correct is None
    assert dynamic_sampling(RunConfig()) is None


OUTCOME = ["rewards=[{kind='model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=outcome"]
PROCESS = ["rewards=[{kind='process_model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=process"]
ITERATIONS = ["iterative.steps=5", "eval.verifier=truth", "reward_model.path=m"]


def complaint(*words: str) -> str:
    return message_of(ConfigError, load_config, None, words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *table("iterative_settings", "what_does_not_go_together_is_refused_with_the_mend"),
        ([*OUTCOME, *ITERATIONS, "reference.every=2"], "iterations move the reference themselves"),
        ([*OUTCOME, "eval.verifier=nobody"], "none of the rewards has that name"),
        ([*PROCESS, *ITERATIONS], "this verifier scores whole answers"),
        ([*OUTCOME, *ITERATIONS, "reward_model.schedule=linear"], 'set it to "constant"'),
        ([*OUTCOME, *ITERATIONS, "iterative.continuations=4"], "an outcome model learns from pairs"),
        ([*OUTCOME, "iterative.steps=0", "iterative.replay=0.2"], "there are no iterations"),
        ([*OUTCOME, "iterative.steps=0", "reward_model.epochs=2"], "the reward model is not trained"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_mend(words: Sequence[str], said: str) -> None:
    assert said in complaint(*words)


def test_the_reference_follows_by_the_iterations() -> None:
    config, _ = load_config(None, [*OUTCOME, *ITERATIONS, "run.steps=12", "iterative.history=pairs.jsonl"])
    assert (config.following.every, config.following.mixup_alpha) == (5, 1.0)
    assert "a copy of π_θ made every 5 steps" in explain(config)
    said = " ".join(plan(config))
    assert [words for words in table("sections", "said") if words not in said] == []


class _Rewards:
    """Every completion has a reward model's 3 and the truth that its text says."""

    def score(self, groups: Sequence[Group]) -> list[Group]:
        return [
            Group(
                group.prompt,
                group.completions,
                tuple(
                    Score(3.0, True, {"model": 3.0, "truth": {"yes": 1.0, "no": 0.0}.get(completion.text)})
                    for completion in group.completions
                ),
            )
            for group in groups
        ]


def test_evaluation_goes_by_the_verifier_alone() -> None:
    completions = tuple(
        Completion((1,), text, (0.0,), "eos", index, 0) for index, text in enumerate(("yes", "no", "who knows"))
    )
    group = Group(Prompt(0, "?", (1,)), completions)
    (scored,) = ScoredBy(_Rewards(), "truth").score([group])  # type: ignore[arg-type]
    assert [(score.reward, score.valid) for score in scored.scores] == [(1.0, True), (0.0, True), (0.0, False)]
