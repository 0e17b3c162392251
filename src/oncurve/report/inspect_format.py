"""The groups of a step as an eval log of Inspect, the UK AI Security Institute's evaluation framework.

The format is version 2 of the JSON form of `inspect_ai.log.EvalLog` (https://inspect.aisi.org.uk/eval-logs.html); the
library is not needed to write it. A step is one eval of the policy that sampled it: a prompt is a sample, and each
completion of its group an epoch of that sample.
"""

from __future__ import annotations

import json
import math
import statistics
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from oncurve.report.records import RunRecord
from oncurve.report.rollouts import RolloutFiles

TOTAL = "total"
"""The score that is the completion's reward. The others have the names of the single rewards."""

STOP_REASONS = {"eos": "stop", "stop": "stop", "length": "max_tokens"}


def inspect_log(record: RunRecord, step: int, run_id: str = "") -> dict[str, Any]:
    """Return the groups of one step as plain values of an `EvalLog`; in JSON, `inspect_ai.log.read_eval_log` reads
    them.

    A completion whose reward is not valid has no score, and is counted as unscored; its fault is in the metadata.
    Each score's metrics are the mean over prompts of the mean over the group, and its standard error over prompts.
    `results.metadata` has the metrics of the step. Raises FileNotFoundError: the step's groups are not there.
    """
    groups, config = record.groups(step), record.config or {}
    metrics = next((dict(line) for line in record.metrics if line.get("step") == step), {})
    model = str(config.get("model", {}).get("path") or "model")
    samples = [sample for group in _named(groups) for sample in _samples(*group, step, model, config, run_id)]
    written = RolloutFiles(record.directory).path(step).stat().st_mtime
    ended = datetime.fromtimestamp(written, UTC).replace(microsecond=0)
    began = datetime.fromtimestamp(ended.timestamp() - metrics.get("time/step", 0.0), UTC).replace(microsecond=0)
    usage = {model: _sum_of([sample["output"]["usage"] for sample in samples])}
    return {
        "version": 2,
        "status": "success",
        "eval": _eval(record, step, run_id, model, samples, began.isoformat()),
        "plan": {
            "name": "plan",
            "steps": [{"solver": "generate", "params": {}, "params_passed": {}}],
            "config": _generation(config),
        },
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_results(name, samples) for name in _score_names(samples)],
            "metadata": {"step": step, "metrics": metrics},
        },
        "stats": {
            "started_at": began.isoformat(),
            "completed_at": ended.isoformat(),
            "model_usage": usage,
            "role_usage": {},
        },
        "samples": samples,
    }


def inspect_file(log: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name and the content of a log's file.

    The name has time, task and id, as Inspect's own have: it lists no JSON file of another name. The keys of the
    content stay in their order, the version first and the samples last: Inspect reads a log's head without the rest.
    """
    began = log["eval"]["created"].replace(":", "-").replace("+", "-")
    task = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in log["eval"]["task"])
    name = f"{began}_{task}_step{log['eval']['metadata']['step']:06d}.json"
    return name, json.dumps(log, indent=1, allow_nan=False, ensure_ascii=False).encode()


def _named(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int | str]]:
    """Return each group with an id for its sample: the prompt's, with a number where a step has the prompt more than
    once.
    """
    seen: Counter[int] = Counter()
    for group in groups:
        number = group["prompt"]["id"]
        seen[number] += 1
        yield group, number if seen[number] == 1 else f"{number}-{seen[number]}"


def _samples(
    group: Mapping[str, Any], name: int | str, step: int, model: str, config: Mapping[str, Any], run_id: str
) -> Iterator[dict[str, Any]]:
    """Return the completions of a group as epochs of one sample."""
    prompt = group["prompt"]
    asked = [{"role": "user", "content": prompt["text"]}]
    if prompt.get("messages"):
        asked = [{"role": message["role"], "content": message["content"]} for message in prompt["messages"]]
    for epoch, completion in enumerate(group["completions"], 1):
        answer = {"role": "assistant", "content": completion["text"], "source": "generate", "model": model}
        tokens = {"input_tokens": len(prompt["ids"]), "output_tokens": len(completion["ids"])}
        usage = {**tokens, "total_tokens": sum(tokens.values())}
        about = ("policy_version", "ended", "advantage", "fault", "extras")
        yield {
            "id": name,
            "epoch": epoch,
            "input": [{**message, "source": "input"} for message in asked]
            if prompt.get("messages")
            else prompt["text"],
            "target": _target(prompt["columns"], config),
            "messages": [*({**message, "source": "input"} for message in asked), answer],
            "output": {
                "model": model,
                "choices": [{"message": answer, "stop_reason": STOP_REASONS.get(completion["ended"], "unknown")}],
                "completion": completion["text"],
                "usage": usage,
            },
            "scores": _scores(completion),
            "metadata": {
                **prompt["columns"],
                "step": step,
                **{key: completion[key] for key in about if completion.get(key) is not None},
            },
            "store": {},
            "events": [],
            "attachments": {},
            "model_usage": {model: usage},
            "role_usage": {},
            "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id} {step} {name} {epoch}")),
        }


def _target(columns: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the text of the column that the first of the rewards compares with; empty where there is none."""
    tables = [table for table in config.get("rewards", ()) if isinstance(table, Mapping)]
    names = [table["answer"] for table in tables if isinstance(table.get("answer"), str)]
    return next((str(columns[name]) for name in (*names, "answer") if columns.get(name) is not None), "")


def _scores(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reward and its parts, those that are numbers."""
    parts = {f"{name} (part)" if name == TOTAL else name: part for name, part in completion.get("parts", {}).items()}
    values = {TOTAL: completion.get("reward"), **parts}
    return {name: {"value": value, "answer": completion["text"]} for name, value in values.items() if value is not None}


def _score_names(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys([TOTAL, *(name for sample in samples for name in sample["scores"])]))


def _results(name: str, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one score over all samples: the mean over prompts of their means over epochs, and its standard error."""
    by_prompt: dict[int | str, list[float]] = {sample["id"]: [] for sample in samples}
    for sample in samples:
        if name in sample["scores"]:
            by_prompt[sample["id"]].append(float(sample["scores"][name]["value"]))
    means = [statistics.fmean(values) for values in by_prompt.values() if values]
    found = {"mean": statistics.fmean(means)} if means else {}
    if len(means) > 1:
        found["stderr"] = statistics.stdev(means) / math.sqrt(len(means))
    return {
        "name": name,
        "scorer": name,
        "reducer": "mean",
        "scored_samples": len(means),
        "unscored_samples": len(by_prompt) - len(means),
        "params": {},
        "metrics": {key: {"name": key, "value": value, "params": {}} for key, value in found.items()},
    }


def _eval(
    record: RunRecord, step: int, run_id: str, model: str, samples: Sequence[Mapping[str, Any]], began: str
) -> dict[str, Any]:
    config, environment = record.config or {}, record.environment or {}
    data, name = config.get("data", {}), record.directory.resolve().name
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    located = {"location": data["path"]} if isinstance(data.get("path"), str) else {}
    return {
        "eval_id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{run_id} {step}")),
        "run_id": run_id,
        "created": began,
        "task": name,
        "task_id": f"{run_id}-step{step:06d}",
        "task_version": 0,
        "task_display_name": f"{name}, step {step}",
        "task_attribs": {},
        "task_args": {"step": step},
        "task_args_passed": {"step": step},
        "dataset": {
            "name": str(data.get("path") or data.get("task") or data.get("kind") or "data"),
            **located,
            "samples": len(ids),
            "sample_ids": ids if len({type(each) for each in ids}) < 2 else [str(each) for each in ids],
        },
        "model": model,
        "model_generate_config": _generation(config),
        "model_args": {},
        "config": {"epochs": max((sample["epoch"] for sample in samples), default=1), "epochs_reducer": ["mean"]},
        "packages": {key: str(environment[key]) for key in ("oncurve", "torch", "transformers") if key in environment},
        "metadata": {"step": step, "run": str(record.directory)},
    }


def _generation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of sampling, by Inspect's names."""
    rollout = config.get("rollout", {})
    found = {"max_tokens": rollout.get("max_new_tokens"), "temperature": rollout.get("temperature")}
    found |= {"seed": config.get("run", {}).get("seed"), "stop_seqs": rollout.get("stop") or None}
    return {key: value for key, value in found.items() if value is not None}


def _sum_of(usages: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {key: sum(usage[key] for usage in usages) for key in ("input_tokens", "output_tokens", "total_tokens")}
