"""A run: how it is built from its configuration, and the files that it leaves. This room imports all others.

It is lazy: importing the package imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy  # before torch, whose C code imports it and would swallow an interrupt that comes meanwhile

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.run.api import resume, sft, train
    from oncurve.run.arguments import (
        CommonSettings,
        command_config,
        data_arguments,
        environment_arguments,
        free_directory,
        reward_arguments,
        sft_config,
        words_for,
    )
    from oncurve.run.assembly import Overrides, Run, assemble
    from oncurve.run.building import held_out_loss
    from oncurve.run.commands.data_check import check_data_of
    from oncurve.run.commands.evaluation import check_rewards_of, evaluate_target, prompts_from
    from oncurve.run.commands.exporting import check_repository, export_run, push_export
    from oncurve.run.commands.reward_models import label_samples, load_reward_recipe, train_reward_model
    from oncurve.run.continuing import check_tracking, continue_with
    from oncurve.run.directory.folder import RunDirectory
    from oncurve.run.directory.listing import find_runs, list_runs, table_of
    from oncurve.run.loop import credit_of, order_of, trainer_config
    from oncurve.run.session import create_directory, finish, resume_any, train_or_resume, train_recipe
    from oncurve.run.trained import TrainedRun


__getattr__, __all__ = lazily(__name__)
