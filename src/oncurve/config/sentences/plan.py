"""The plan in words: what a run will do, a sentence a line, and what looks like a mistake; both are templates."""

from __future__ import annotations

from pathlib import Path

from oncurve.advantages import needs_of, reads_rewards, teacher_of
from oncurve.components import described, kind_of
from oncurve.config.rules.completeness import missing
from oncurve.config.rules.without_effect import inert
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.facts import RunFacts
from oncurve.evaluate import NO_VERIFIER
from oncurve.learner import warmup_of
from oncurve.losses import (
    OBJECTIVE_KINDS,
    corrects,
    corrects_for_sampler,
    expected_aggregation,
    grows_with_batch,
    has_importance_ratio,
    objective_note,
)
from oncurve.report import rendered
from oncurve.rewards import verifier_of


def plan(config: RunConfig, facts: RunFacts | None = None) -> list[str]:
    """Return the plan, one sentence per line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or RunFacts()
    noted = config.over(10**12)  # an unknown number of steps is more than any setting
    return (
        sentences_of("plan.j2", config, known)
        + [f"note: {text}" for text in [*sentences_of("notes.j2", noted, known), *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def sentences_of(template: str, config: RunConfig, facts: RunFacts) -> list[str]:
    """Return the paragraphs of a template about a configuration (`c`) and the facts of its run (`f`), a line each."""
    adapter = "" if facts.adapter is None else f" ({facts.adapter.nbytes / 1e6:,.3g} MB)"
    text = rendered(
        template,
        c=config,
        f=facts,
        has_ratio=has_importance_ratio(config.objective),
        corrected=corrects(config.correction),
        corrects_for_sampler=corrects_for_sampler(config.objective),
        objective=kind_of(config.objective, OBJECTIVE_KINDS),
        objective_note=objective_note(config.objective),
        expected_aggregation=expected_aggregation(config.objective),
        grows_with_batch=grows_with_batch,
        needs=needs_of(config.advantage),
        reads_rewards=reads_rewards(config.advantage),
        critic_warmup=warmup_of(config.critic),
        verifier=verifier_of(config.rewards, config.eval.verifier),
        no_verifier=NO_VERIFIER,
        teacher=teacher_of(config.advantage),
        adapter_copy=f"a frozen copy of the adapter{adapter}",
        limits=[count for count in (facts.eval_rows, config.eval.limit) if count is not None],
        described=described,
        count=_count,
        epochs=_epochs,
        name_of=lambda path: Path(path).name,
        repr=repr,
    )
    paragraphs = (" ".join(map(str.strip, each.strip().split("\n"))) for each in text.split("\n\n"))
    return [sentence for sentence in paragraphs if sentence]


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:.3g} epochs"
