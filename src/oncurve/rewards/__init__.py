"""Rewards: from groups of completions to scores.

`RewardSet.build(tables)` makes the rewards of a run, `score(groups)` gives every completion a `Score`. User functions
and slow checkers run in killable workers. Faults are counted, and masked, raised or replaced by a value (`on_error`).
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.rewards.component import LARGEST_REWARD as LARGEST_REWARD
    from oncurve.rewards.functions.answers import final_answer as final_answer
    from oncurve.rewards.functions.callables import Accepts as Accepts, awaited as awaited, unpickled as unpickled
    from oncurve.rewards.functions.math import Math as Math, cosine_scaled as cosine_scaled
    from oncurve.rewards.functions.python import Python as Python, name_of as name_of, path_of as path_of
    from oncurve.rewards.functions.shaping import Format as Format, Overlong as Overlong, Repetition as Repetition
    from oncurve.rewards.functions.verify import (
        Choice as Choice,
        EnvironmentReward as EnvironmentReward,
        Exact as Exact,
        Numeric as Numeric,
        Regex as Regex,
    )
    from oncurve.rewards.judge.model_judge import ModelJudge as ModelJudge
    from oncurve.rewards.kinds import REWARD_KINDS as REWARD_KINDS
    from oncurve.rewards.model import ModelReward as ModelReward
    from oncurve.rewards.scoring.deferred import (
        DeferredScoring as DeferredScoring,
        Locate as Locate,
        Scorer as Scorer,
        Scoring as Scoring,
    )
    from oncurve.rewards.scoring.rewardset import (
        RewardSet as RewardSet,
        Trial as Trial,
        can_be_tried as can_be_tried,
        component_names as component_names,
        tried as tried,
        verifier_of as verifier_of,
    )
    from oncurve.rewards.settings import (
        InProcess as InProcess,
        RewardSettings as RewardSettings,
        Seconds as Seconds,
        WorkerLimits as WorkerLimits,
        check_reward as check_reward,
        kind_meant as kind_meant,
    )

__getattr__, _ = lazily(__name__)  # a worker imports what it serves alone, and no torch
