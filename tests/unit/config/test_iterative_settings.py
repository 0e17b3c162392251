"""`[iterative]`, `[reward_model]` and `eval.verifier`: what goes together, what a run misses, what the plan says."""

from collections.abc import Sequence

import pytest

from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.config.sentences.equation import explain
from oncurve.config.sentences.plan import plan
from oncurve.run.iterations import ScoredBy
from oncurve.types import Completion, Group, Prompt, Score

OUTCOME = ["rewards=[{kind='model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=outcome"]
PROCESS = ["rewards=[{kind='process_model'}, {kind='task', name='truth', weight=0}]", "reward_model.kind=process"]
ITERATIONS = ["iterative.steps=5", "eval.verifier=truth", "reward_model.path=m"]


def complaint(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, words)
    return str(caught.value)


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
    assert "3 iterations of 5 steps" in said
    assert "10% of all earlier examples (at first those of pairs.jsonl)" in said
    assert "'truth' scores" in said


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
