"""Evaluation of a policy on held-out prompts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oncurve.evaluate.estimators import Interval, bootstrap, maj_at_k, pass_at_k, powers_of_two, share, wilson
from oncurve.rewards import Scorer, final_answer
from oncurve.rollout import RolloutEngine, Sampling, sample
from oncurve.types import Group, Prompt, Score

EVALUATION_DRAW = -1  # training draws count up from 0, so no evaluation shares its random numbers with a step

Correct = Callable[[Score], bool | None]
"""Whether a score is that of a correct completion; None where the verifier does not apply to it."""


NO_VERIFIER = (
    "accuracy, pass@k and maj@k are not reported: the rewards do not say which of them is the verifier; name it, "
    "eval.verifier=NAME"
)
"""The sentence for several rewards none of which alone checks the answer."""


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`. Fields that were not requested are None or empty.

    `completions` is n, the sampled completions a prompt; `mean_reward`, `pass_at_k` and `maj_at_k` are of those.
    `mean_length` (tokens) and `truncated_fraction` are of the sampled completions, of the greedy ones where there are
    none. `greedy` holds the scored greedy groups, in the order of the prompts, and `greedy_correct` whether each is
    correct: what `paired_difference` compares. `verifier` is the reward that says what is correct, if it is one alone.
    `unverified` counts the prompts to which it does not apply: accuracy, pass@k and maj@k are of the others.
    `held_out`: whether the prompts were kept out of training; `source`, what else they are, in words. `sampled` holds
    the scored groups of the samples.
    """

    prompts: int
    completions: int
    invalid: int
    mean_length: float
    truncated_fraction: float
    greedy_accuracy: Interval | None = None
    greedy_reward: Interval | None = None
    mean_reward: Interval | None = None
    pass_at_k: dict[int, Interval] = field(default_factory=dict)
    maj_at_k: dict[int, Interval] = field(default_factory=dict)
    greedy: tuple[Group, ...] = ()
    greedy_correct: tuple[bool, ...] = ()
    verifier: str | None = None
    held_out: bool = True
    sampled: tuple[Group, ...] = ()
    unverified: int = 0
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; an interval is `[value, low, high]`. Without the groups."""
        counts = ("prompts", "held_out", "completions", "verifier", "unverified", "invalid")
        names = ("greedy_accuracy", "greedy_reward", "mean_reward")
        return {
            **{name: getattr(self, name) for name in (*counts, "mean_length", "truncated_fraction")},
            **{name: list(found) for name in names if (found := getattr(self, name)) is not None},
            "pass_at_k": {str(k): list(interval) for k, interval in self.pass_at_k.items()},
            "maj_at_k": {str(k): list(interval) for k, interval in self.maj_at_k.items()},
        }

    def text(self) -> str:
        """Return the estimates as lines to read, with their intervals; what a notebook's cell shows."""
        kind = "held-out prompts" if self.held_out else "prompts of the training data (the recipe holds none out)"
        kind = kind if self.source is None else f"prompts of {self.source}"
        lines = [f"{self.prompts} {kind}, {self.completions} sample{'s' * (self.completions != 1)} each"]
        if self.verifier is None:
            lines.append(f"  {NO_VERIFIER}")
        if self.unverified:
            without = f"  {self.verifier} does not apply to {self.unverified} of the prompts: "
            lines.append(without + "accuracy, pass@k and maj@k are of the others")
        lines += [f"  {label:<16} {interval.value:8.4f}   {self._extent(interval)}" for label, interval in self._rows()]
        lines.append(f"  {'mean length':<16} {self.mean_length:8.1f}   tokens; {self.truncated_fraction:.1%} cut off")
        if self.invalid:
            wrong = "; those to which it applies count as wrong" if self.unverified else " and count as wrong"
            lines.append(f"  {self.invalid} completions had no usable reward{wrong}")
        return "\n".join(lines)

    def _extent(self, interval: Interval) -> str:
        known = interval.low < interval.high or self.prompts - self.unverified > 1
        return f"95 % interval {interval.low:.4f} to {interval.high:.4f}" if known else "no interval from one prompt"

    def _rows(self) -> list[tuple[str, Interval]]:
        """Return the label and interval of each line; one line where mean reward, pass@1 and maj@1 are one quantity."""
        rows = {"greedy accuracy": self.greedy_accuracy, "mean reward": self.mean_reward or self.greedy_reward}
        rows |= {f"pass@{k}": interval for k, interval in self.pass_at_k.items()}
        rows |= {f"maj@{k}": interval for k, interval in self.maj_at_k.items()}
        ones = {"mean reward", *(("greedy accuracy",) if self.mean_reward is None else ("pass@1", "maj@1"))}
        named: dict[tuple[Interval, str], list[str]] = {}
        for label, interval in rows.items():
            if interval is not None:
                named.setdefault((interval, "" if label in ones else label), []).append(label)
        return [(" = ".join(labels), interval) for (interval, _), labels in named.items()]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.text())

    def to_metrics(self) -> dict[str, float]:
        """Return the estimates under the declared keys `eval/<name>`: accuracy, reward, length, pass@k, maj@k.

        `eval/reward` is that of the sampled completions, of the greedy ones where there are none.
        """
        reward = self.mean_reward or self.greedy_reward
        metrics = {} if self.greedy_accuracy is None else {"eval/accuracy": self.greedy_accuracy.value}
        metrics |= {} if reward is None else {"eval/reward": reward.value}
        metrics["eval/length"] = self.mean_length
        metrics |= {f"eval/pass@{k}": interval.value for k, interval in self.pass_at_k.items()}
        return metrics | {f"eval/maj@{k}": interval.value for k, interval in self.maj_at_k.items()}


def vote_of(text: str) -> str | None:
    """Return a completion's vote without a better one: its marked final answer, else all its text.

    Stripped of spaces around it; None, no vote, where nothing is left.
    """
    marked = final_answer(text)
    return (text.strip() if marked is None else marked) or None


def part_is_1(name: str) -> Correct:
    """Correct by one reward alone: its raw value is 1 or more, whatever its weight. None: it does not apply."""

    def correct(score: Score) -> bool | None:
        value = score.parts.get(name)
        if value is None and (score.fault is None or score.fault.startswith("none:")):  # it returned None
            return None
        return score.valid and value is not None and value >= 1

    return correct


def evaluate(
    engine: RolloutEngine,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    *,
    greedy: Sampling | None = None,
    sampled: Sampling | None = None,
    correct: Correct | None = None,
    verifier: str | None = None,
    seed: int = 0,
) -> Evaluation:
    """Sample every prompt greedily, or n times, or both, and estimate how good the policy is.

    scorer            scores the groups
    greedy, sampled   sampling settings: temperature 0 and one completion; n completions
    correct           whether a score is that of a correct completion; None: not known, and then neither accuracy nor
                      pass@k nor maj@k is given
    verifier          the name of the reward that says so, for the record
    seed              of the bootstrap intervals

    The k of pass@k and maj@k are powers of two up to n. Raises ValueError: no prompts, neither `greedy` nor `sampled`.
    """
    if not prompts:
        raise ValueError("nothing to evaluate on: there are no prompts")
    if greedy is None and sampled is None:
        raise ValueError("nothing to do: give greedy or sampled settings, or both")
    one = [] if greedy is None else _scored(engine, scorer, prompts, greedy)
    many = [] if sampled is None else _scored(engine, scorer, prompts, sampled)
    n = min((len(group.completions) for group in many), default=0)
    pairs = [pair for group in (many or one) for pair in zip(group.completions, group.scores, strict=True)]
    first, several = ([] if correct is None else [_verdicts(g, correct) for g in gs] for gs in (one, many))
    greedy_correct = tuple(right for rights, _ in first for right in rights[:1])
    enough = {k: [found for found in several if len(found[0]) >= min(k, n)] for k in powers_of_two(n)}
    by_k = {k: found for k, found in enough.items() if found}
    return Evaluation(
        prompts=len(prompts),
        completions=n,
        invalid=sum(not score.valid for group in (*one, *many) for score in group.scores),
        mean_length=math.fsum(len(completion.ids) for completion, _ in pairs) / len(pairs),
        truncated_fraction=sum(completion.truncated for completion, _ in pairs) / len(pairs),
        greedy_accuracy=wilson(sum(greedy_correct), len(greedy_correct)) if greedy_correct else None,
        greedy_reward=_reward(one, seed),
        mean_reward=_reward(many, seed),
        pass_at_k={k: share([pass_at_k(len(r), sum(r), k) for r, _ in found], seed) for k, found in by_k.items()},
        maj_at_k={k: share([maj_at_k(votes, r, k) for r, votes in found], seed) for k, found in by_k.items()},
        greedy=tuple(one),
        greedy_correct=greedy_correct,
        verifier=verifier,
        sampled=tuple(many),
        unverified=sum(not rights for rights, _ in several or first),
    )


def _scored(engine: RolloutEngine, scorer: Scorer, prompts: Sequence[Prompt], sampling: Sampling) -> list[Group]:
    with scorer.begin() as scoring:
        groups = sample(engine, prompts, EVALUATION_DRAW, sampling.group_size, sampling, scoring.submit)
        return [_one_per_sample(group) for group in scoring.finish(groups)]


def _one_per_sample(group: Group) -> Group:
    """Return the group with the first completion of each episode."""
    completions, scores = zip(*((group.completions[n], group.scores[n]) for n in group.firsts()), strict=True)
    return replace(group, completions=completions, scores=scores)


def _verdicts(group: Group, correct: Correct) -> tuple[list[bool], list[str | None]]:
    """Return the verdicts and the votes of the completions to which the verifier applies."""
    found = [(correct(score), c.text, score.valid) for c, score in zip(group.completions, group.scores, strict=True)]
    votes = [vote_of(text) if valid else None for right, text, valid in found if right is not None]
    return [right for right, _, _ in found if right is not None], votes


def _reward(groups: Sequence[Group], seed: int) -> Interval | None:
    """Return the mean over prompts of the mean reward of their valid completions; None where no completion is valid."""
    rewards = [[score.reward for score in group.scores if score.valid] for group in groups]
    means = [math.fsum(valid) / len(valid) for valid in rewards if valid]
    shares = all(reward in (0.0, 1.0) for valid in rewards for reward in valid)  # a share of right ones: its interval
    return (share if shares else bootstrap)(means, seed) if means else None
