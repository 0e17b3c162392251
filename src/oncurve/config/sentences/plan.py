"""The plan in words: what a run will do, a sentence a line. `notes.py` has what looks like a mistake."""

from __future__ import annotations

from pathlib import Path

from oncurve.advantages import teacher_of
from oncurve.components import described
from oncurve.config.rules.completeness import missing
from oncurve.config.rules.without_effect import inert
from oncurve.config.sections import RunConfig
from oncurve.config.sentences.notes import RunFacts, notes_on
from oncurve.losses import corrects, corrects_for_sampler, has_importance_ratio
from oncurve.report import rendered
from oncurve.rewards import verifier_of


def plan(config: RunConfig, facts: RunFacts | None = None) -> list[str]:
    """Return the plan, one sentence per line; then what looks like a mistake, each line beginning with `note: `."""
    known = facts or RunFacts()
    adapter = "" if known.adapter is None else f" ({known.adapter.nbytes / 1e6:,.3g} MB)"
    text = rendered(
        "plan.j2",
        c=config,
        f=known,
        has_ratio=has_importance_ratio(config.objective),
        corrected=corrects(config.correction),
        corrects_for_sampler=corrects_for_sampler(config.objective),
        verifier=verifier_of(config.rewards, config.eval.verifier),
        teacher=teacher_of(config.advantage),
        adapter_copy=f"a frozen copy of the adapter{adapter}",
        limits=[count for count in (known.eval_rows, config.eval.limit) if count is not None],
        described=described,
        count=_count,
        epochs=_epochs,
        name_of=lambda path: Path(path).name,
        repr=repr,
        fmt=format,
    )
    paragraphs = (" ".join(map(str.strip, each.strip().split("\n"))) for each in text.split("\n\n"))
    noted = config.over(10**12)  # an unknown number of steps is more than any setting
    return (
        [sentence for sentence in paragraphs if sentence]
        + [f"note: {text}" for text in [*notes_on(noted, known), *inert(config)]]
        + [f"missing: {hole.replace(' missing;', '')}" for hole in missing(config, known.parameters is not None)]
    )


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:.3g} epochs"
