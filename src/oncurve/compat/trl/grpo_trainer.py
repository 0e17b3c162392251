"""`GRPOTrainer`: TRL's trainer on oncurve's run. Its constructor checks and loads everything; `train` trains.

trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=dataset)
trainer.train()
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import Trainer

from oncurve.base.errors import ConfigError, suggest
from oncurve.compat.trl.config import DIALECT, TRAINER_KEYS, GRPOConfig
from oncurve.compat.trl.parsing import without_adapter
from oncurve.compat.trl.run_keys import WORDS
from oncurve.compat.trl.run_trainer import RunTrainer
from oncurve.compat.trl.trainer_arguments import assembled, check_one_process, translated
from oncurve.losses import off_policy, top_entropy

log = logging.getLogger(__name__)

OWN, FREE = WORDS["own"], WORDS["free"]
NOT_CALLED = {name for name in dir(Trainer) if not name.startswith("__")}.difference(FREE).union(WORDS["of_grpo"])


def refuse_overrides(trainer: type, *assigned: str) -> None:
    """Raise ConfigError: a subclass of `GRPOTrainer`, or an assignment, replaces methods that are not called here."""
    found = set(assigned)
    for each in trainer.__mro__:
        found |= NOT_CALLED.intersection(vars(each)).difference(OWN if each.__module__.startswith("oncurve.") else ())
    if found:
        raise ConfigError(
            f"{trainer.__name__}: oncurve's loop does not call {', '.join(sorted(found))}, so training would go on "
            "without what replaces it; remove it. A loss, an advantage or a rollout engine of your own is a component: "
            "docs/extending.md"
        )


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

    def get_high_entropy_mask(self, entropies: Tensor, mask: Tensor, threshold: float) -> Tensor:
        """Return the tokens `(B, T)` of the highest entropies, a share of 1 - `threshold` of those of `mask (B, T)`."""
        return top_entropy(entropies, mask.bool(), 1.0 - threshold)

    @staticmethod
    def get_off_policy_mask(
        advantages: Tensor,
        per_token_logps: Tensor,
        sampling_per_token_logps: Tensor,
        mask: Tensor,
        off_policy_threshold: float,
    ) -> Tensor:
        """Return 1 for each completion `(B, 1)` that is trained on, and 0 where its advantage `(B, 1)` is negative and
        its tokens are off-policy (`oncurve.losses.off_policy`); the other tensors are `(B, T)`."""
        each = advantages.expand_as(per_token_logps)
        dropped = off_policy(per_token_logps, sampling_per_token_logps, each, mask.bool(), off_policy_threshold)
        return 1.0 - dropped.any(1, keepdim=True).to(per_token_logps.dtype)


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
