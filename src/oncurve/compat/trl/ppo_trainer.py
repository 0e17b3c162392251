"""`PPOTrainer`: the interface of TRL's PPO trainer, which TRL removed, on oncurve's run.

trainer = PPOTrainer(args=args, processing_class=tokenizer, model=policy, ref_model=None, reward_model=reward,
                     train_dataset=dataset, value_model=None)
trainer.train()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncurve.base.errors import ConfigError, suggest
from oncurve.compat.trl.arguments import check_one_process, loaded
from oncurve.compat.trl.hooks import LogLine
from oncurve.compat.trl.ppo_arguments import check_reward_model, ppo_said_by
from oncurve.compat.trl.ppo_config import PPOConfig
from oncurve.compat.trl.ppo_dialect import DIALECT
from oncurve.compat.trl.ppo_keys import PPO_TRAINER_KEYS
from oncurve.compat.trl.ppo_logs import ppo_logs
from oncurve.compat.trl.run_trainer import RunTrainer
from oncurve.config import RunConfig
from oncurve.trainer import StepResult


class PPOTrainer(RunTrainer):
    """TRL's `PPOTrainer`, with its arguments; `docs/coming-from.md` says what becomes of each.

    args                a `PPOConfig` of this package
    processing_class    the policy's tokenizer; None: the model's own
    model               a folder or hub id, or a module, which is trained in place
    ref_model           None, or the same model
    reward_model        a sequence classifier of one label: a folder or hub id, or a module with the weights of one
    train_dataset       rows with tokens in `input_ids`, or with text or messages in `prompt`
    value_model         None, or a model whose weights, without its head, are the policy's
    eval_dataset        one data set of held-out rows
    callbacks           objects or classes of transformers' `TrainerCallback`
    peft_config         a `LoraConfig`

    `state.global_step` counts batches, as there. Raises ConfigError, and UserErrors of data, model and rewards, for
    all that the caller can change.
    """

    def __init__(
        self,
        args: PPOConfig,
        processing_class: Any = None,
        model: Any = None,
        ref_model: Any = None,
        reward_model: Any = None,
        train_dataset: Any = None,
        value_model: Any = None,
        data_collator: Any = None,
        eval_dataset: Any = None,
        optimizers: Any = (None, None),
        callbacks: Sequence[Any] | None = None,
        peft_config: Any = None,
        **unknown: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown", "__class__")}
        for name in unknown:
            known = [key.theirs.partition(".")[2] for key in PPO_TRAINER_KEYS]
            raise ConfigError(f"PPOTrainer of TRL {DIALECT.version} has no argument {name!r}{suggest(name, known)}")
        check_one_process()
        if not isinstance(args, PPOConfig):
            raise ConfigError(
                f"args: expected a PPOConfig of oncurve.compat.trl, got a {type(args).__module__}."
                f"{type(args).__name__}; import both from oncurve.compat.trl"
            )
        super().__init__(
            args,
            args.translated(**ppo_said_by(given, args)),
            lambda config: loaded(model, processing_class, config, args),
            self._logs,
            1,
            1,
            every_step=True,
        )
        try:
            check_reward_model(self.run, reward_model)
        except ConfigError:
            self.close()
            raise
        self._begin_callbacks(callbacks)

    def _logs(self, result: StepResult, config: RunConfig) -> LogLine:
        episode = result.step * config.data.prompts_per_step
        self.state.episode = episode
        end = getattr(self.processing_class, "eos_token_id", None)
        return ppo_logs(result.metrics, result.groups, episode, config.kl.coef, end)
