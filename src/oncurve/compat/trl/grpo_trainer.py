"""`GRPOTrainer`: TRL's trainer on oncurve's run. Its constructor checks and loads everything; `train` trains.

trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=dataset)
trainer.train()
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncurve.base.errors import ConfigError, suggest
from oncurve.compat.trl.arguments import assembled, check_one_process, translated
from oncurve.compat.trl.config import GRPOConfig
from oncurve.compat.trl.dialect import DIALECT, TRAINER_KEYS
from oncurve.compat.trl.overrides import NOT_CALLED, refuse_overrides
from oncurve.compat.trl.peft_keys import without_adapter
from oncurve.compat.trl.run_trainer import RunTrainer

log = logging.getLogger(__name__)


class GRPOTrainer(RunTrainer):
    """TRL's `GRPOTrainer`, with its arguments; the page "Coming from another tool" says what becomes of each.

    model               a folder or hub id, or a module, which is trained in place; of a PeftModel its new adapter
    reward_funcs        a function of TRL's signature, a reward model's folder or hub id, or a list of them
    args                a `GRPOConfig` of this package
    train_dataset       rows with a column `prompt`: a Dataset, an IterableDataset, a list of mappings
    eval_dataset        held-out rows, or a dict of several sets
    processing_class    the tokenizer; None: the model's own
    callbacks           objects or classes of transformers' `TrainerCallback`
    peft_config         a `LoraConfig`

    Raises ConfigError, and UserErrors of data, model and rewards, for all that the caller can change.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: Any = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
        **unknown: Any,
    ) -> None:
        refuse_overrides(type(self))
        model, peft_config = without_adapter(model, peft_config)
        self.reward_processing_classes = _one_for_each(reward_processing_classes, reward_funcs)
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown", "__class__")}
        for name in unknown:
            known = [key.theirs.removeprefix("GRPOTrainer.") for key in TRAINER_KEYS]
            raise ConfigError(f"GRPOTrainer of TRL {DIALECT.version} has no argument {name!r}{suggest(name, known)}")
        check_one_process()
        args = _checked_args(args, model)
        self.train_dataset = train_dataset
        if args.importance_sampling_level == "sequence" and args.loss_type in ("bnpo", "dr_grpo", "dapo"):
            log.warning(
                "importance_sampling_level='sequence' with loss_type=%r weights each sequence by its completion "
                "length; loss_type='grpo' does not",
                args.loss_type,
            )
        translation = translated(given, args, lambda: self.state, self.reward_processing_classes)
        run = assembled(translation, model, processing_class, args)
        super().__init__(args, translation, run, eval_dataset, callbacks)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in NOT_CALLED:
            refuse_overrides(type(self), name)
        super().__setattr__(name, value)


def _one_for_each(classes: Any, reward_funcs: Any) -> list[Any]:
    """Return the tokenizers of the rewards, None where a reward brings its own. Raises ConfigError: a wrong number."""
    count = len(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else 1
    listed = classes if isinstance(classes, list) else [None] * count if classes is None else [classes]
    if len(listed) != count:
        raise ConfigError(
            f"reward_processing_classes: their number ({len(listed)}) must match that of reward_funcs ({count})"
        )
    return listed


def _checked_args(args: Any, model: Any) -> GRPOConfig:
    """Return the given settings, or TRL's defaults for the model. Raises ConfigError: they are not of this package."""
    if args is None:
        name = model if isinstance(model, (str, Path)) else getattr(getattr(model, "config", None), "_name_or_path", "")
        return GRPOConfig(f"{Path(name).name or type(model).__name__}-GRPO")
    if not isinstance(args, GRPOConfig):
        raise ConfigError(
            f"args: expected a GRPOConfig of oncurve.compat.trl, got a {type(args).__module__}.{type(args).__name__}; "
            "import both from oncurve.compat.trl"
        )
    return args
