"""Rewards: from groups of completions to scores.

`RewardSet.build(tables)` makes the rewards of a run, `score(groups)` gives every completion a `Score`. User functions
and slow checkers run in killable workers. Faults are counted, and masked, raised or replaced by a value (`on_error`).
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.rewards.component import LARGEST_REWARD
    from oncurve.rewards.functions.answers import final_answer
    from oncurve.rewards.functions.callables import Accepts as Accepts, later, trl_arguments, unpickled
    from oncurve.rewards.functions.math import Math, cosine_scaled
    from oncurve.rewards.functions.python import Python, name_of, path_of
    from oncurve.rewards.functions.shaping import Format, Overlong, Repetition
    from oncurve.rewards.functions.verify import Choice, EnvironmentReward, Exact, Numeric, Regex
    from oncurve.rewards.judge.model_judge import ModelJudge
    from oncurve.rewards.kinds import REWARD_KINDS
    from oncurve.rewards.model import ModelReward
    from oncurve.rewards.scoring.deferred import DeferredScoring, Locate, Scorer, Scoring
    from oncurve.rewards.scoring.rewardset import (
        RewardSet as RewardSet,
        Trial,
        can_be_tried,
        component_names,
        tried,
        verifier_of,
    )
    from oncurve.rewards.settings import (
        InProcess as InProcess,
        RewardSettings as RewardSettings,
        Seconds,
        WorkerLimits,
        check_reward,
        kind_meant,
    )

__getattr__, _ = lazily(__name__)  # a worker imports what it serves alone, and no torch
