"""TRL's table: the fields of `GRPOConfig`, also of older versions, and the arguments of `GRPOTrainer`."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Dialect, Key, Values
from oncurve.compat.trl.loss_keys import LOSS_KEYS
from oncurve.compat.trl.run_keys import RUN_KEYS
from oncurve.compat.trl.unused_keys import IDLE_KEYS, REFUSED_KEYS

CONFIG_KEYS = (*RUN_KEYS, *LOSS_KEYS, *IDLE_KEYS, *REFUSED_KEYS)
"""The fields of `GRPOConfig`."""


def _left(value: Any, values: Values) -> dict[str, Any]:
    return {} if value is None else {"data.max_prompt_tokens": value, "data.overlong": "truncate_left"}


def as_given(value: Any, values: Values) -> dict[str, Any]:
    """The settings that the trainer, or the reader of a script, has found in an argument."""
    return dict(value.settings)


class Told(str):
    """An argument of the trainer's as comments show it, with the settings that it is."""

    settings: dict[str, Any]

    def __new__(cls, text: str, settings: dict[str, Any]) -> Told:
        """The text with its settings."""
        told = super().__new__(cls, text)
        told.settings = settings
        return told


OLDER_KEYS = (
    Key(
        "max_prompt_length",
        ("data.max_prompt_tokens", "data.overlong"),
        "of an older TRL, which kept the last tokens of a longer prompt",
        _left,
        types=(int, type(None)),
    ),
    Key("warmup_ratio", ("learner.warmup_ratio",), "of an older version; now warmup_steps=0.1", types=(float,)),
    Key("evaluation_strategy", (), "it is eval_strategy now", refused=True),
    Key("torch_dtype", (), 'it is model_init_kwargs={"dtype": ...}', refused=True),
    Key("no_cuda", (), "it is use_cpu now", refused=True, harmless=(False,)),
    Key("overwrite_output_dir", (), "nothing is overwritten; name another output_dir", refused=True, harmless=(False,)),
    Key("save_safetensors", (), "always so", types=(bool,)),
    Key("logging_dir", (), "the run's folder has the logs"),
)
"""Fields that older versions had."""

TRAINER = "GRPOTrainer."
TRAINER_KEYS = (
    Key("GRPOTrainer.model", ("model.path",), "a folder, a hub id, or a module", as_given),
    Key(
        "GRPOTrainer.reward_funcs",
        ("rewards",),
        "functions of TRL's signature, in a recipe [[rewards]] path = \"file.py:name\"; a model's folder or hub id",
        as_given,
    ),
    Key("GRPOTrainer.args", (), "a GRPOConfig"),
    Key(
        "GRPOTrainer.train_dataset",
        ("data.kind", "data.path", "data.split", "data.subset", "data.revision", "data.rows", "data.limit"),
        "a Dataset or an IterableDataset, or rows in any form that oncurve.train takes",
        as_given,
    ),
    Key(
        "GRPOTrainer.eval_dataset",
        ("data.eval_path", "data.eval_split", "data.eval_rows"),
        "one data set, or a dict of several",
        as_given,
    ),
    Key("GRPOTrainer.processing_class", (), "the tokenizer; a processor of images is refused"),
    Key("GRPOTrainer.reward_processing_classes", (), "a reward model brings its own tokenizer"),
    Key("GRPOTrainer.callbacks", (), "the hooks from on_train_begin to on_train_end; oncurve has on_step="),
    Key(
        "GRPOTrainer.peft_config",
        ("lora.rank", "lora.alpha", "lora.targets", "lora.dropout"),
        "a LoraConfig",
        as_given,
    ),
    Key(
        "GRPOTrainer.optimizers",
        (),
        "AdamW, by the settings of GRPOConfig",
        refused=True,
        harmless=((None, None), None),
    ),
    Key(
        "GRPOTrainer.quantization_config",
        (),
        'weights under an adapter are stored with 4 bits by model.quantization = "nf4" in a recipe',
        refused=True,
        harmless=(None,),
    ),
    Key("GRPOTrainer.tools", (), "completions are one turn of the policy alone", refused=True, harmless=(None,)),
    Key(
        "GRPOTrainer.rollout_func",
        (),
        "a rollout engine of your own has docs/extending.md",
        refused=True,
        harmless=(None,),
    ),
    Key(
        "GRPOTrainer.environment_factory",
        (),
        "completions are one turn of the policy alone",
        refused=True,
        harmless=(None,),
    ),
)

DIALECT = Dialect("TRL", "1.16", (*CONFIG_KEYS, *OLDER_KEYS, *TRAINER_KEYS))


def check_argument(name: str) -> None:
    """Raises ConfigError: `GRPOTrainer` has no such argument."""
    from oncurve.base.errors import suggest

    known = [key.theirs.removeprefix(TRAINER) for key in TRAINER_KEYS]
    if name not in known:
        raise ConfigError(f"GRPOTrainer of TRL {DIALECT.version} has no argument {name!r}{suggest(name, known)}")
