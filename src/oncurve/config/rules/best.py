"""What goes with `checkpoint.best` and `eval.patience`."""

from __future__ import annotations

from oncurve.base.errors import suggest
from oncurve.config.sections import RunConfig
from oncurve.rewards import verifier_of


def measured(config: RunConfig) -> list[str]:
    """The metrics of an evaluation of which more is better."""
    if verifier_of(config.rewards, config.eval.verifier) is None:
        return ["eval/reward"]
    powers = [2**power for power in range(config.eval.n.bit_length())]
    return ["eval/accuracy", "eval/reward", *(f"eval/{name}@{k}" for name in ("pass", "maj") for k in powers)]


def wrong_best(config: RunConfig) -> list[str]:
    """What is wrong with `checkpoint.best` and `eval.patience`, a line each."""
    best = config.checkpoint.best
    if best is None:
        needs = 'eval.patience: set checkpoint.best to the metric that must get better, like "eval/accuracy"'
        return [needs] if config.eval.patience else []
    if not config.eval.every:
        return ["checkpoint.best: nothing is evaluated while training; set eval.every, like 20"]
    known = measured(config)
    if best in known or not config.rewards:
        return []
    near = suggest(best, known) or ";"
    return [f"checkpoint.best: an evaluation does not give {best!r}{near} it gives {', '.join(known)}"]
