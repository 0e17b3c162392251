"""verl's `trainer.*`: how long, what is kept, evaluated and tracked, and where the run's folder is."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, command, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.data import evaluates
from oncurve.compat.verl.rows import MODEL, OR_NONE, TEXT, WHOLE, YES_OR_NO, idle, meaning, refused

TRACKERS = {"console": "", "file": "", "wandb": "wandb", "tensorboard": "tensorboard", "trackio": "trackio"}
NO_TRACKER = dict.fromkeys(
    ("mlflow", "swanlab", "vemlp_wandb", "clearml", "tracking", "rl_insight"),
    "oncurve shows metrics to wandb, tensorboard and trackio; every run has metrics.jsonl",
)
FOLDER = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"


def _epochs(epochs: Any, values: Values) -> dict[str, Any]:
    return {"run.epochs": epochs} if values["trainer.total_training_steps"] is None else {}


def _steps(steps: Any, values: Values) -> dict[str, Any]:
    return {} if steps is None else {"run.steps": steps}


def _every(setting: str) -> Any:
    return lambda steps, values: {setting: max(0, steps)}


def _at_start(first: Any, values: Values) -> dict[str, Any]:
    return {"eval.at_start": first} if evaluates(values) else {}


def _kept(count: Any, values: Values) -> dict[str, Any]:
    return {"checkpoint.keep": count} if count is not None and values["trainer.save_freq"] > 0 else {}


def _trackers(names: Any, values: Values) -> dict[str, Any]:
    listed = [names] if isinstance(names, str) else names
    found = [meaning(name, TRACKERS, NO_TRACKER) for name in listed if isinstance(name, str)]
    if len(found) != len(listed):
        raise ConfigError(f"expected names of trackers, got {shown(names)}")
    return {"tracking.to": [name for name in found if name]}


def tracks(values: Values) -> bool:
    """Whether a tracker is named."""
    return bool(_trackers(values["trainer.logger"], values)["tracking.to"])


def _project(name: Any, values: Values) -> dict[str, Any]:
    return {"tracking.project": name} if tracks(values) else {}


def _val_only(only: Any, values: Values) -> dict[str, Any]:
    if only:
        example = command("eval", values[f"{MODEL}.path"], "--recipe", "recipe.toml")
        raise ConfigError(f"trains nothing; print the recipe without it (config from-verl --out), then: {example}")
    return {}


def _resume(mode: Any, values: Values) -> dict[str, Any]:
    meaning(mode, {"auto": "", "disable": ""}, {"resume_path": f"a run is continued by: {command('resume', 'FOLDER')}"})
    return {}


def _outside(value: Any, values: Values) -> dict[str, Any]:
    return {}


ONE_MACHINE = "cluster.learner_ranks says how many processes share the updates, and cluster.kind on which machines"

KEYS: tuple[Key, ...] = (
    Key(
        "trainer.total_epochs",
        ("run.epochs",),
        "the last batch of an epoch is filled from the next, where verl drops it; next to total_training_steps it has "
        "no effect here",
        _epochs,
        default=30,
        applied=True,
        types=WHOLE,
    ),
    Key("trainer.total_training_steps", ("run.steps",), "", _steps, types=(*WHOLE, *OR_NONE)),
    Key(
        "trainer.save_freq",
        ("checkpoint.every",),
        "-1 is 0: a checkpoint when the run ends or is stopped",
        _every("checkpoint.every"),
        default=-1,
        applied=True,
        types=WHOLE,
    ),
    Key("trainer.max_actor_ckpt_to_keep", ("checkpoint.keep",), "null, all of them, is oncurve's number", _kept,
        types=(*WHOLE, *OR_NONE)),
    Key("trainer.max_critic_ckpt_to_keep", ("checkpoint.keep",), "a checkpoint has policy and critic", _kept,
        types=(*WHOLE, *OR_NONE)),
    Key("trainer.test_freq", ("eval.every",), "-1 is 0: never", _every("eval.every"), -1, types=WHOLE),
    Key(
        "trainer.val_before_train",
        ("eval.at_start",),
        "without trainer.test_freq nothing is evaluated here: oncurve eval does it after the run",
        _at_start,
        default=True,
        types=YES_OR_NO,
    ),
    Key("trainer.val_only", ("oncurve eval",), "a command of its own", _val_only, default=False, types=YES_OR_NO),
    Key(
        "trainer.logger",
        ("tracking.to",),
        "console and file are always there; verl's default, console and wandb, is not taken: nothing is sent anywhere "
        "unasked",
        _trackers,
        default="console",
        types=(*TEXT, list),
    ),
    Key("trainer.project_name", ("tracking.project", "--out"), "and a part of the folder", _project, "verl_examples",
        types=TEXT),
    Key("trainer.experiment_name", ("run.name", "--out"), "and a part of the folder",
        lambda name, values: {"run.name": name}, "gsm8k", types=TEXT),
    Key("trainer.default_local_dir", ("--out",), "the run's folder", _outside, FOLDER, types=TEXT),
    Key("trainer.resume_mode", ("--resume-if-there",), "auto continues the run that is in the folder", _resume, "auto"),
    refused("trainer.resume_from_path", "a run is continued by: oncurve resume FOLDER; leave it out", None, False),
    refused("trainer.default_hdfs_dir", "the run's folder is on this machine; leave it out", None),
    refused("trainer.checkpoint_callback_class", "leave it out; oncurve export writes any checkpoint", None),
    Key("trainer.nnodes", (), ONE_MACHINE, default=1),
    Key("trainer.n_gpus_per_node", (), ONE_MACHINE),
    *idle("trainer", "balance_batch", "micro-batches are always filled by tokens"),
    *idle("trainer", "device", "model.device is auto: CUDA where there is one"),
    *idle("trainer", "log_val_generations val_generations_to_log_to_wandb rollout_data_dir validation_data_dir",
          "every step's completions are in rollouts/ of the run's folder"),
    *idle("trainer", "del_local_ckpt_after_load remove_previous_ckpt_in_save esi_redundant_time",
          "checkpoint.keep says how many stay"),
    *idle("trainer", "use_v1 ray_wait_register_center_timeout use_legacy_worker_impl", "how verl runs its workers"),
)  # fmt: skip
