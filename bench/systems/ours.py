"""oncurve, assembled as every run is; what is measured is wrapped from outside."""

from __future__ import annotations

import time
from typing import Any

from bench import machine, models
from bench.cases import Case, is_constant, length
from bench.systems.probe import Probe
from bench.systems.worker import Channel
from oncurve.machine import contention

__all__ = ["STEPS", "build_run", "serve"]

STEPS = 64
"""Rows for so many steps, so that no prompt occurs twice in a run."""


def settings(case: Case) -> dict[str, Any]:
    """Return the recipe: the defaults, and the settings of the case."""
    options = case.options
    options.pop("watch", None)
    adapter = {"lora": {"rank": options.pop("lora")}} if "lora" in options else {}
    rows = models.token_rows(case, STEPS)
    dtype = options.pop("dtype", "float32" if machine.limited() else "auto")
    return {
        "run": {"threads": case.threads, "steps": STEPS},
        "model": {"path": str(models.model_path(case.model, case.vocabulary)), "dtype": dtype},
        "data": {
            "kind": "list",
            "rows": tuple({"prompt": ids, "constant": is_constant(case, i)} for i, ids in enumerate(rows)),
            "shuffle": False,
            "prompts_per_step": case.prompts,
        },
        "rollout": {"group_size": case.group_size, "max_new_tokens": case.completion},
        "rewards": [{"kind": "python", "path": f"{models.ROOT / 'bench' / 'systems' / 'rewards.py'}:hashed"}],
        "kl": {"coef": case.kl_coef},
        "learner": options,
        **adapter,
    }


def build_run(case: Case, **others: dict[str, Any]) -> Any:
    """Return the run of the case, its engine with the case's lengths and no end token; `others`: further sections."""
    from oncurve.config.loading import load_config
    from oncurve.rollout import InProcessEngine
    from oncurve.run.assembly import assemble

    whole = settings(case)
    for section, keys in others.items():
        whole[section] = {**whole.get(section, {}), **keys}
    config, base = load_config("grpo", settings=whole)
    run = assemble(config, base)
    run.engine = run.trainer.groups.engine = InProcessEngine(
        config.rollout,
        run.loaded.tokenizer,
        (),
        config.run.seed,
        limits=lambda prompt, sample: length(case, prompt, sample),
    )
    return run


def watch(run: Any) -> Probe:
    """Return a probe on the run's parts."""
    probe = Probe()
    probe.timed(run.trainer.groups.engine, "generate", "decode")
    _watch_prefill(run.loaded.model, probe)
    probe.timed(run.learner, "score", "reference")
    probe.timed(run.learner, "update", "train")
    probe.timed(run.learner.optimizer, "gradient_norm", "optimizer")
    probe.timed(run.learner.optimizer, "step", "optimizer")
    probe.count_tokens(run.loaded.model.module)
    reference = run.learner.reference
    if reference is not None and reference.model.module is not run.loaded.model.module:
        probe.count_tokens(reference.model.module)
    return probe


def _watch_prefill(model: Any, probe: Probe) -> None:
    """Prompts are prefilled when a decoder is made, and when further groups join it.

    The decoder's class is watched and not the decoder: a decoder that held a function of its own would stay in memory,
    with its weights packed for decoding, until the garbage collector runs.
    """
    make, watched = model.decoder, set[type]()

    def decoder(*arguments: Any, **keywords: Any) -> Any:
        with probe.phase("prefill"):
            made = make(*arguments, **keywords)
        if type(made) not in watched:
            watched.add(type(made))
            probe.timed(type(made), "join", "prefill")
        return made

    model.decoder = decoder


def serve(case: Case, channel: Channel) -> None:
    """Take a training step per command."""
    with build_run(case) as run:
        if not case.options.get("watch", True):
            contention.stop()
        probe = watch(run)
        channel.ready(path=run.loaded.model.path_reason, dtype=str(run.loaded.dtype))
        while channel.wants_step():
            started = time.perf_counter()
            result = run.trainer.step()
            seconds = time.perf_counter() - started
            lengths = [len(completion.ids) for group in result.groups for completion in group.completions]
            report = probe.report(seconds, lengths, result.metrics.get("policy/mismatch"))
            report.phases["reward"] = result.metrics["time/reward"]  # the part of it that is not within the rollout
            channel.done(report)
