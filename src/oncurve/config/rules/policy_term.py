"""What the policy term counts, and with which weight: rules and words of `[correction]` and the filters of tokens."""

from __future__ import annotations

from oncurve.components import Impossible, Inert, described
from oncurve.config.sections import RunConfig
from oncurve.losses import corrects, corrects_for_sampler

IMPOSSIBLE: tuple[Impossible, ...] = (
    Impossible(
        lambda c: corrects(c.correction) and c.learner.old_logprobs == "rollout",
        'correction.kind: with learner.old_logprobs = "rollout" the old log-probs are the sampler\'s, so that all '
        'weights would be 1; set learner.old_logprobs to "recompute", or correction.kind to "none"',
    ),
    Impossible(
        lambda c: corrects(c.correction) and corrects_for_sampler(c.objective),
        "correction.kind: the objective's own ratio is to the sampler's policy, and a weight would correct for it a "
        'second time; set correction.kind to "none", or objective.kind to "clipped"',
    ),
)

INERT: tuple[Inert, ...] = (
    Inert(
        ("filter.off_policy_threshold",),
        ("learner.ppo_epochs", "learner.minibatches"),
        lambda c: c.stays_at_1,
        "with one update per rollout of an exact engine no completion is off-policy",
    ),
)


def sentences(config: RunConfig) -> list[str]:
    """What is corrected and what is left out, a sentence each; none where every token counts as it is."""
    exact, filters = config.exact_rollout, config.filter
    lines = []
    if corrects(config.correction):
        equation = described(config.correction)
        where = (
            "of a completion by older weights (a completion by the present ones has weight 1, because the engine is "
            "exact: where there are no others, nothing is corrected)"
            if exact
            else "(the engine is not exact)"
        )
        meaning = "; ".join(f"{letter} = {text}" for letter, text in equation.legend.items())
        lines.append(
            f"Correction: the objective's loss of each token {where} is multiplied by {equation.term}; {meaning}."
        )
    elif not exact and not corrects_for_sampler(config.objective):
        lines.append(
            'Nothing corrects for the difference between sampler and learner (correction.kind = "none"), but for the '
            "ratio to completions by older weights."
        )
    if filters.top_entropy < 1:
        lines.append(
            f"The objective counts the {filters.top_entropy:.3g} of a step's trained tokens with the highest entropy "
            "before its first update."
        )
    if filters.off_policy_threshold is not None:
        lines.append(
            "The objective leaves out tokens with a negative advantage of completions whose mean of log μ - log π_θ is "
            f"above {filters.off_policy_threshold:g}, μ being the sampler's policy."
        )
    return lines
