"""A run: how it is built from its configuration, and the files that it leaves. This room imports all others.

It is lazy: importing the package imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy  # noqa: F401 - before torch, whose C code imports it and would swallow an interrupt that comes meanwhile

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.run.api import resume as resume, sft as sft, train as train
    from oncurve.run.arguments import (
        CommonSettings as CommonSettings,
        command_config as command_config,
        data_arguments as data_arguments,
        environment_arguments as environment_arguments,
        free_directory as free_directory,
        reward_arguments as reward_arguments,
        sft_config as sft_config,
        words_for as words_for,
    )
    from oncurve.run.assembly import Overrides as Overrides, Run as Run, assemble as assemble
    from oncurve.run.building import held_out_loss as held_out_loss
    from oncurve.run.commands.data_check import check_data_of as check_data_of
    from oncurve.run.commands.evaluation import evaluate_target as evaluate_target, prompts_from as prompts_from
    from oncurve.run.commands.exporting import (
        check_repository as check_repository,
        export_run as export_run,
        push_export as push_export,
    )
    from oncurve.run.commands.reward_check import check_rewards_of as check_rewards_of
    from oncurve.run.commands.reward_models import (
        label_samples as label_samples,
        load_reward_recipe as load_reward_recipe,
        train_reward_model as train_reward_model,
    )
    from oncurve.run.continuing import continue_with as continue_with
    from oncurve.run.directory.folder import RunDirectory as RunDirectory
    from oncurve.run.directory.listing import find_runs as find_runs, list_runs as list_runs, table_of as table_of
    from oncurve.run.loop import credit_of as credit_of, order_of as order_of, trainer_config as trainer_config
    from oncurve.run.session import (
        create_directory as create_directory,
        finish as finish,
        resume_any as resume_any,
        train_or_resume as train_or_resume,
        train_recipe as train_recipe,
    )
    from oncurve.run.tracking import check_tracking as check_tracking
    from oncurve.run.trained import TrainedRun as TrainedRun


__getattr__, __all__ = lazily(__name__)
