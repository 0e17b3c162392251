"""The reward functions of `trl.rewards`, with TRL's signatures and results.

`think_format_reward`, the punishments and the cosine are oncurve's own rewards on TRL's lists. The two accuracies parse
with the options of TRL: there a completion without a box or delimiters has no answer, which the kind `math` may find.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from oncurve.rewards import Format, Overlong, Repetition, cosine_scaled

Completions = Sequence[Sequence[Mapping[str, str]]]
Ids = Sequence[Sequence[int]]
LogExtra = Callable[[str, list[Any]], None]


def _texts(completions: Completions) -> list[str]:
    if any(isinstance(completion, str) for completion in completions):
        raise TypeError("TRL's rewards read messages: make prompts lists of messages, or use oncurve's --reward math")
    return [completion[0]["content"] for completion in completions]


def think_format_reward(completions: Completions, **kwargs: Any) -> list[float]:
    """Return 1 for each completion, a list of one message, that begins with a closed `<think>`, else 0."""
    return list(map(Format(preset="think"), _texts(completions)))


def accuracy_reward(
    completions: Completions, solution: Sequence[str], log_extra: LogExtra | None = None, **kwargs: Any
) -> list[float | None]:
    """Return 1 for each completion whose answer equals that of its `solution` mathematically, else 0.

    None where the solution holds no formula, so that the reward does not apply. The answers are logged as extras.
    """
    return _accuracies(_texts(completions), solution, log_extra)


def reasoning_accuracy_reward(
    completions: Completions,
    solution: Sequence[str],
    reasoning_delimiters: Sequence[str] | None = None,
    log_extra: LogExtra | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """Return `accuracy_reward` of the text after the last of the first delimiter that occurs.

    0 for a completion whose reasoning does not end. `reasoning_delimiters`: None is `["</think>"]`.
    """
    ends = ("</think>",) if reasoning_delimiters is None else reasoning_delimiters
    answers = [_after_reasoning(text, ends) for text in _texts(completions)]
    return _accuracies(answers, solution, log_extra)


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Callable[..., list[float]]:
    """Return the punishment of DAPO (arXiv:2503.14476, eq. 13) as a reward function of token ids.

    0 up to `max_completion_len - soft_punish_cache` tokens, then falling to -1 at `max_completion_len`. With a cache of
    0 it is -1 above `max_completion_len`.
    """
    punishment = Overlong(buffer=soft_punish_cache, max_length=max_completion_len) if soft_punish_cache else None

    def soft_overlong_punishment_reward(completion_ids: Ids, **kwargs: Any) -> list[float]:
        if punishment is None:
            return [-1.0 if len(ids) > max_completion_len else 0.0 for ids in completion_ids]
        return [punishment(len(ids)) for ids in completion_ids]

    return soft_overlong_punishment_reward


def get_repetition_penalty_reward(ngram_size: int = 3, max_penalty: float = -1.0) -> Callable[..., list[float]]:
    """Return the punishment of repeated n-grams (arXiv:2502.03373, appendix C.2) as a reward function of token ids.

    Raises ValueError: `max_penalty` is above 0.
    """
    if max_penalty > 0:
        raise ValueError(f"max_penalty {max_penalty} should not be positive")
    punishment = Repetition(ngram_size=ngram_size, max_penalty=max_penalty) if max_penalty else None

    def repetition_penalty_reward(completion_ids: Ids, **kwargs: Any) -> list[float]:
        return [0.0 if punishment is None else punishment(ids) for ids in completion_ids]

    return repetition_penalty_reward


def get_cosine_scaled_reward(
    max_len: int,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> Callable[..., list[float | None]]:
    """Return the correctness by the completion's length (arXiv:2502.03373, appendix C.1) as a reward function.

    A correct completion has `max_value_correct` at length 0 and `min_value_correct` at `max_len` tokens; a wrong one
    `min_value_wrong` and `max_value_wrong`. None where the solution holds no formula.
    """
    ends = {0.0: (min_value_wrong, max_value_wrong), 1.0: (max_value_correct, min_value_correct)}
    reward = partial(_cosine_scaled, max_len, ends)  # which can be pickled
    reward.__name__ = "cosine_scaled_reward"  # type: ignore[attr-defined]
    return reward


def _cosine_scaled(
    max_len: int,
    ends: Mapping[float, tuple[float, float]],
    completions: Completions,
    solution: Sequence[str],
    completion_ids: Ids,
    log_extra: LogExtra | None = None,
    **kwargs: Any,
) -> list[float | None]:
    right = accuracy_reward(completions, solution, log_extra)
    return [
        None if each is None else cosine_scaled(len(ids), max_len, *ends[each])
        for each, ids in zip(right, completion_ids, strict=True)
    ]


def _after_reasoning(text: str, ends: Sequence[str]) -> str | None:
    """Return the text after the reasoning, or None if it does not end."""
    found = next((end for end in ends if end in text), None)
    return None if found is None else text.split(found)[-1]


def _accuracies(
    answers: Sequence[str | None], solutions: Sequence[str], log_extra: LogExtra | None
) -> list[float | None]:
    """Return the correctness of texts (None: wrong, without an answer), by math-verify with TRL's options."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    formulas = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    rewards, golds, given = list[float | None](), list[str](), list[str]()
    for text, solution in zip(answers, solutions, strict=True):
        gold = [] if text is None else parse(solution, parsing_timeout=None)
        found = []
        if gold:
            found = parse(text, extraction_config=[formulas], extraction_mode="first_match", parsing_timeout=None)
        rewards.append(0.0 if text is None else float(verify(gold, found, timeout_seconds=None)) if gold else None)
        golds.append("[incomplete reasoning]" if text is None else str(gold) if gold else "[unparseable]")
        given.append(_shown(text, bool(gold), found))
    if log_extra is not None:
        log_extra("solution", list(solutions))
        log_extra("gold_parsed", golds)
        log_extra("answer_parsed", given)
    return rewards


def _shown(text: str | None, applies: bool, found: Sequence[Any]) -> str:
    if text is None:
        return "[incomplete reasoning]"
    return (str(found) if found else "[unparseable]") if applies else "[skipped]"


BY_PATH = {
    function: f"{__name__}:{function.__name__}"
    for function in (think_format_reward, accuracy_reward, reasoning_accuracy_reward)
}
"""The functions here that a worker can load by their path, under its deadline."""
