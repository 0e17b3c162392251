"""`GRPOTrainer`: TRL's trainer on oncurve's run. Its constructor checks and loads everything; `train` trains.

trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=dataset)
trainer.train()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncurve.compat.trl.arguments import check_one_process, loaded, said_by
from oncurve.compat.trl.config import GRPOConfig
from oncurve.compat.trl.dialect import check_argument
from oncurve.compat.trl.logs import step_logs
from oncurve.compat.trl.run_trainer import RunTrainer
from oncurve.compat.trl.sizes import sizes
from oncurve.errors import ConfigError


class GRPOTrainer(RunTrainer):
    """TRL's `GRPOTrainer`, with its arguments; `docs/coming-from.md` says what becomes of each.

    model               a folder or hub id, or a module, which is trained in place
    reward_funcs        a function of TRL's signature, a reward model's folder or hub id, or a list of them
    args                a `GRPOConfig` of this package
    train_dataset       rows with a column `prompt`: a Dataset, an IterableDataset, a list of mappings
    eval_dataset        one data set of held-out rows
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
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown", "__class__")}
        for name in unknown:
            check_argument(name)
        check_one_process()
        args = _checked_args(args, model)
        super().__init__(
            args,
            args.translated(**said_by(given, args, lambda: self._hooks.state)),
            lambda config: loaded(model, processing_class, config, args),
            lambda result, config: step_logs(result.metrics, result.groups, config.kl.coef > 0),
            sizes(args.values()).updates,
            args.num_generations_eval or args.num_generations,
        )
        self._begin_callbacks(callbacks)


def _checked_args(args: Any, model: Any) -> GRPOConfig:
    """The given settings, or TRL's defaults for the model. Raises ConfigError: they are not of this package."""
    if args is None:
        name = model if isinstance(model, (str, Path)) else getattr(getattr(model, "config", None), "_name_or_path", "")
        return GRPOConfig(f"{Path(name).name or type(model).__name__}-GRPO")
    if not isinstance(args, GRPOConfig):
        raise ConfigError(
            f"args: expected a GRPOConfig of oncurve.compat.trl, got a {type(args).__module__}.{type(args).__name__}; "
            "import both from oncurve.compat.trl"
        )
    return args
