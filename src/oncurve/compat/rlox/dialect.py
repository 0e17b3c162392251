"""rlox's YAML or TOML file for `train --config`, as data.

The file's tables are flattened, `hyperparameters: {group_size: 4}` is `hyperparameters.group_size`. rlox itself reads
such files for control tasks only; `algorithm: grpo` has here the settings that its `GRPO` has in Python. What rlox has
no key for, model, prompts and rewards, stands on the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Dialect, Key, Said, Translation, Values
from oncurve.compat.loading import config_of
from oncurve.compat.rlox.elsewhere import CONTROL
from oncurve.config import RunConfig, read_yaml
from oncurve.run import data_arguments, reward_arguments

ABOUT = """
`from oncurve.compat.rlox import *` takes the place of rlox's import line: `GRPO`, the functions
`compute_group_advantages`, `compute_batch_group_advantages`, `compute_token_kl`, `compute_gae` and their relatives,
`Callback`, `CallbackList`, `EarlyStoppingCallback`, `LoggerCallback`, `ConsoleLogger`. Algorithms for control tasks
(`PPO`, `SAC`, ...) are refused by name. `oncurve.GRPO` is the same class with oncurve's algorithm, and
`from oncurve.compat.rlox import GRPO` has rlox's.

`oncurve train --config config.yaml model.path=MODEL --data train.jsonl --reward math` takes rlox's YAML with
`algorithm: grpo`.

What differs:

* Completions are sampled by oncurve and not by the model's `generate`, which a model need not have.
* `reward_fn` gets completions without their prompts, and the prompt's tokens are never trained. rlox gives and trains
  whole sequences.
* `save` writes `model.safetensors`, in full precision, in place of a pickled checkpoint.
* rlox's page takes the mean of the KL over all tokens, and its code, of 1.2, the sum over the tokens of a sequence. The
  page's is here; `kl.aggregation=seq-mean-token-sum`, or in Python `settings={"kl.aggregation": "seq-mean-token-sum"}`,
  is the code's.
* NaN in rewards or log-probs is an error, and so are arrays of different lengths.

What to give up: `preset="grpo"` has the clipped objective and k3, whose gradient is that of a KL penalty. rlox's KL
term, k1 in the loss, has a gradient of expectation 0 and only adds noise.
"""

ALGORITHM = {
    "advantage.kind": "grpo",
    "advantage.scale": "group",
    "advantage.ddof": 0,
    "advantage.eps": 0.0,
    "objective.kind": "reinforce",
    "kl.where": "loss",
    "kl.estimator": "k1",
    "kl.aggregation": "token-mean",
    "aggregation.kind": "seq-mean-token-sum",
}
"""The preset "rlox", without its numbers, which are keys of their own."""


def _algorithm(value: str, _: Values) -> dict[str, Any]:
    if value.lower() != "grpo":
        raise ConfigError(f'{shown(value)}: {CONTROL}; here it is "grpo"')
    return ALGORITHM


def _evaluated(value: int, values: Values) -> dict[str, Any]:
    return {"eval.every": value} if "eval" in (values["callbacks"] or ()) else {}


def _saved(value: int, values: Values) -> dict[str, Any]:
    return {"checkpoint.every": value} if "checkpoint" in (values["callbacks"] or ()) else {}


def _callbacks(names: list[Any], _: Values) -> dict[str, Any]:
    for name in names:
        if name not in ("eval", "checkpoint", "progress", "timing"):
            raise ConfigError(f"{shown(name)}: expected eval, checkpoint, progress or timing")
    return {}


def _logger(name: str | None, _: Values) -> dict[str, Any]:
    if name in (None, "", "console"):
        return {}
    if name not in ("tensorboard", "wandb"):
        raise ConfigError(f"{shown(name)}: expected tensorboard, wandb or console")
    return {"tracking.to": [name]}


NUMBER, WHOLE, TEXT, FLAG, NONE = (float,), (int,), (str,), (bool,), type(None)
NO_ENVIRONMENT = "there is no environment; prompts are data.path, and completions are scored by [[rewards]]"
SAME = "as in Python, GRPO"


def _hyperparameters(section: str, applied: bool) -> tuple[Key, ...]:
    each = [
        ("group_size", "rollout.group_size", WHOLE, 4),
        ("learning_rate", "learner.learning_rate", NUMBER, 1e-4),
        ("kl_coef", "kl.coef", NUMBER, 0.1),
        ("max_new_tokens", "rollout.max_new_tokens", WHOLE, 8),
        ("max_grad_norm", "learner.max_grad_norm", NUMBER, 1.0),
    ]
    keys = [Key(f"{section}.{a}", (b,), types=types, default=d, applied=applied) for a, b, types, d in each]
    epochs = "a pass over the prompts; in rlox it is one update, here a step has data.prompts_per_step prompts"
    return (*keys, Key(f"{section}.n_epochs", ("run.epochs",), epochs, types=NUMBER))


DIALECT = Dialect(
    "rlox",
    "1.2",
    (
        Key("algorithm", tuple(ALGORITHM), "rlox's own algorithm", _algorithm, "grpo", True, TEXT),
        Key("env_id", (), NO_ENVIRONMENT, refused=True, harmless=("", None)),
        Key("env", (), NO_ENVIRONMENT, refused=True, harmless=("", None)),
        Key("total_timesteps", (), "steps of an environment; run.steps has the updates", refused=True),
        Key("seed", ("run.seed",), types=WHOLE, default=42, applied=True),
        Key("n_envs", (), "there is no environment"),
        *_hyperparameters("hyperparameters", applied=True),
        *_hyperparameters("config", applied=False),
        Key("callbacks", ("eval.every", "checkpoint.every"), "by their _freq", _callbacks, types=(list,)),
        Key("logger", ("tracking.to",), "the console shows every step", _logger, types=(str, NONE)),
        Key("log_dir", (), "the run's folder is --out"),
        Key("eval_freq", ("eval.every",), 'in steps, with the callback "eval"', _evaluated, types=WHOLE),
        Key("eval_episodes", ("eval.limit",), "held-out prompts", types=WHOLE),
        Key("checkpoint_freq", ("checkpoint.every",), 'in steps, with the callback "checkpoint"', _saved, types=WHOLE),
        Key("checkpoint_dir", (), "checkpoints are in the run's folder, --out"),
        Key("normalize_obs", (), "there are no observations", refused=True, harmless=(False, None)),
        Key("normalize_rewards", (), "advantages are normalised per group", refused=True, harmless=(False, None)),
    ),
)


def translated(path: Path) -> Translation | None:
    """The settings of a file in rlox's form; None: it has no `algorithm`, so it is not.

    Raises ConfigError: it cannot be read, or has a setting that is unknown, refused or wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text) if path.suffix == ".toml" else read_yaml(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split()) or type(error).__name__}") from error
    if not isinstance(tables, Mapping) or "algorithm" not in tables:
        return None
    try:
        return DIALECT.translate({name: Said(value, str(path)) for name, value in _flat(tables)})
    except ConfigError as error:
        said = f"; see {path}" if str(path) not in str(error) else ""
        raise ConfigError(f"{error}{said}") from None


def _flat(tables: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tables.items():
        if name in ("hyperparameters", "config") and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", each) for key, each in value.items())
        else:
            yield str(name), value


def run_config(
    path: Path, overrides: Sequence[str] = (), data: str | None = None, rewards: Sequence[str] = ()
) -> tuple[RunConfig, Path] | None:
    """The configuration of a file in rlox's form, with words like `"model.path=M"`; None: it is not in that form.

    `data` and `rewards` are as `oncurve.train` takes them. Raises ConfigError as `translated` does, and for what
    oncurve refuses.
    """
    found = translated(path)
    arguments = [*data_arguments(data), *reward_arguments(list(rewards) or None)]
    return None if found is None else config_of(found, overrides, arguments)
