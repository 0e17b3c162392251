"""Functions of verl's tables: sizes, the optimizer, the critic, data, evaluation, the model, and how the run goes on.

Each is `(value, values)` as `oncurve.compat.dialect` has it, and raises ConfigError for what cannot be.
"""

from typing import Any

from oncurve.base.errors import ConfigError, command, shown
from oncurve.compat.dialect import Values, meaning
from oncurve.compat.verl.algorithm import ACTOR, MODEL, ROLLOUT, WORDS, advantage, is_given, local, updates_per_step

OPTIM = f"{ACTOR}.optim"


def micro_batch_rows(rows: int | None, values: Values) -> int | None:
    longest = int(values["data.max_prompt_length"] + values["data.max_response_length"])
    return None if rows is None or values[f"{ACTOR}.use_dynamic_bsz"] else rows * longest


def model_engine(engine: Any, values: Values) -> str | None:
    """Return the schedule of a library whose default is not FSDP's constant rate, where none is given."""
    kind = meaning(engine, {"dp": None, "megatron": None, "veomni": "cosine", "torchtitan": "linear"})
    given = is_given(values, f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.warmup_style", f"{OPTIM}.decay_type")
    return None if given or kind is None else str(kind)


def decay_type(kind: Any, values: Values) -> Any:
    torchtitan = values["model_engine"] == "torchtitan"
    return meaning(kind, WORDS["schedules"], {"sqrt": "take linear"}) if torchtitan else None


def _warmup_steps(values: Values) -> int:
    """Return how many of verl's steps warm up; 0 where its ratio counts, as VeOmni's always does."""
    return 0 if values["model_engine"] == "veomni" else max(0, values[f"{OPTIM}.lr_warmup_steps"] or 0)


def warmup_steps(_: Any, values: Values) -> int | None:
    steps = _warmup_steps(values)
    return steps * updates_per_step(values) if steps else None


def warmup_ratio(ratio: float, values: Values) -> float | None:
    return ratio if ratio and not _warmup_steps(values) else None


def critic_enable(enabled: bool | None, values: Values) -> None:
    if enabled is not None and enabled is not (advantage(values) == "gae"):
        raise ConfigError("the critic belongs to gae, and to no other; leave it out")


def as_actor(value: Any, values: Values, of: str) -> None:
    if value is not None and value != values[of] and advantage(values) == "gae":
        raise ConfigError(
            f"{shown(value)} differs from {of}={values[of]}: critic and policy share the learner's settings; leave it "
            "out, or give both the same value"
        )


def critic_model(given: Any, values: Values) -> None:
    actor = values[f"{MODEL}.path"]
    if advantage(values) == "gae" and isinstance(given, str) and local(given) != local(actor):
        raise ConfigError(f"the critic begins as the policy, {actor}, with a value head; leave out {shown(given)}")


def critic_warmup(steps: int, values: Values) -> int | None:
    return (steps - 1) * updates_per_step(values) if advantage(values) == "gae" and steps > 1 else None


def path(given: Any, values: Values) -> str | None:
    return None if given is None else local(given)


def paths(given: Any, values: Values) -> str | list[str]:
    """Return one path or a list of them. Raises ConfigError as `local`."""
    return [local(each) for each in given] if isinstance(given, list) and given else local(given)


def evaluates(values: Values) -> bool:
    """Return whether the run evaluates as it goes on."""
    return bool(values["trainer.test_freq"] > 0)


def val_files(given: Any, values: Values) -> Any:
    reads = evaluates(values) or (is_given(values, "data.val_files") and values["trainer.val_before_train"])
    return paths(given, values) if reads else None


def truncation(kind: Any, values: Values) -> str | None:
    words = {"error": "error", "left": "truncate_left"}
    if values["data.filter_overlong_prompts"]:
        meaning(kind, words | WORDS["cut"])
        return None
    return str(meaning(kind, words, WORDS["cut"]))


def policys_tokenizer(given: Any, values: Values) -> None:
    if given not in (None, values[f"{MODEL}.path"]):
        raise ConfigError(f"the tokenizer is that of {MODEL}.path; leave it out, got {shown(given)}")


def of_samples(value: Any, values: Values) -> Any:
    val = f"{ROLLOUT}.val_kwargs"
    return value if evaluates(values) and values[f"{val}.do_sample"] and values[f"{val}.temperature"] != 0 else None


def samples(_: Any, values: Values) -> Any:
    return of_samples(values[f"{ROLLOUT}.val_kwargs.n"], values)


def of_adapter(value: Any, values: Values) -> Any:
    """Return a setting of a new adapter, None where there is none, or where it is loaded."""
    rank = values[f"{MODEL}.lora.rank"] or values[f"{MODEL}.lora_rank"] or 0
    loaded = is_given(values, f"{MODEL}.lora_adapter_path", f"{MODEL}.lora.adapter_path")
    return value if rank > 0 and not loaded else None


def target_modules(names: Any, values: Values) -> Any:
    listed = names if names == "all-linear" or isinstance(names, list) else [names]
    if of_adapter(listed, values) is None:
        return None
    if not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"expected names of layers, got {shown(names)}")
    return listed


def override_config(table: dict[str, Any], values: Values) -> None:
    known = {"attn_implementation", "max_position_embeddings"}
    for name, value in {**table, **(table.get("model_config") or {})}.items():
        if name in ("model_config", "moe_config") and not any(value.values() if name == "moe_config" else ()):
            continue
        no_dropout = name.endswith(("dropout", "pdrop")) and value == 0
        if name not in known and not no_dropout:
            raise ConfigError(f"{name}: the model is run as its config.json says; change it there")


def epochs(count: int, values: Values) -> int | None:
    return count if values["trainer.total_training_steps"] is None else None


def val_only(only: bool, values: Values) -> None:
    if only:
        example = command("eval", values[f"{MODEL}.path"], "--recipe", "recipe.toml")
        raise ConfigError(f"trains nothing; print the recipe without it (config from-verl --out), then: {example}")


def trackers(names: Any, values: Values) -> list[str]:
    listed = [names] if isinstance(names, str) else names
    if not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"expected names of trackers, got {shown(names)}")
    return [found for name in listed if (found := meaning(name, WORDS["trackers"], WORDS["no_tracker"]))]


def if_tracked(name: str, values: Values) -> str | None:
    return name if trackers(values["trainer.logger"], values) else None


def run_name(name: str, values: Values) -> str:
    return name


TURNS = f"{ROLLOUT}.multi_turn"


def multi_turn(enabled: bool, values: Values) -> dict[str, Any]:
    """Return the environment whose tools verl's file of tools, or a file of functions, names."""
    if not enabled:
        return {}
    classes = values[f"{TURNS}.tool_config_path"] or values["data.tool_config_path"]
    functions = values["data.function_tool_path"]
    if classes is None and functions is None:
        raise ConfigError(f"which tools there are is not said: set {TURNS}.tool_config_path")
    found: dict[str, Any] = {"environment.kind": "tools"}
    settings = {
        "config": local(str(classes)) if classes else None,
        "functions": local(str(functions)) if functions else None,
        "longest": values[f"{TURNS}.max_tool_response_length"],
        "side": values[f"{TURNS}.tool_response_truncate_side"],
    }
    return found | {"environment.path": "oncurve.compat.verl.tools:VerlTools", "environment.settings": settings}
