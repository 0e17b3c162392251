"""Rewards: from groups of completions to scores.

`RewardSet.build(tables)` makes the rewards of a run, `score(groups)` gives every completion a `Score`. User functions
and slow checkers run in killable workers. Faults are counted, and masked, raised or replaced by a value (`on_error`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.lazy import lazily

if TYPE_CHECKING:
    from oncurve.rewards.accepts import Accepts as Accepts
    from oncurve.rewards.answers import final_answer as final_answer
    from oncurve.rewards.choice import Choice as Choice
    from oncurve.rewards.component import LARGEST_REWARD as LARGEST_REWARD
    from oncurve.rewards.cosine import Cosine as Cosine, cosine_scaled as cosine_scaled
    from oncurve.rewards.format import Format as Format
    from oncurve.rewards.kinds import REWARD_KINDS as REWARD_KINDS
    from oncurve.rewards.length_cap import LengthCap as LengthCap
    from oncurve.rewards.math import Math as Math
    from oncurve.rewards.model import ModelReward as ModelReward, ProcessModelReward as ProcessModelReward
    from oncurve.rewards.model_judge import ModelJudge as ModelJudge
    from oncurve.rewards.overlong import Overlong as Overlong
    from oncurve.rewards.protocol import Scorer as Scorer, Scoring as Scoring
    from oncurve.rewards.python import Python as Python, path_of as path_of
    from oncurve.rewards.repetition import Repetition as Repetition
    from oncurve.rewards.rewardset import (
        RewardSet as RewardSet,
        component_names as component_names,
        verifier_of as verifier_of,
    )
    from oncurve.rewards.scoring import DeferredScoring as DeferredScoring, Locate as Locate
    from oncurve.rewards.settings import (
        InProcess as InProcess,
        RewardSettings as RewardSettings,
        check_reward as check_reward,
        kind_meant as kind_meant,
    )
    from oncurve.rewards.trial import Trial as Trial, can_be_tried as can_be_tried, tried as tried
    from oncurve.rewards.verify import (
        Exact as Exact,
        Numeric as Numeric,
        Regex as Regex,
        Task as Task,
        TaskSteps as TaskSteps,
    )

__getattr__, _ = lazily(__name__)  # a worker imports what it serves alone, and no torch
