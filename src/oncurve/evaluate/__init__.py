"""Measures of a policy: greedy accuracy, mean reward, pass@k and maj@k, each with a 95 % interval.

A completion is *correct* where its score is valid and the one reward that checks answers gives it 1, whatever the
rewards weigh (`part_is_1`); where there is no such reward, accuracy, pass@k and maj@k are not given. A completion that
could not be scored is not correct, and is counted in `invalid`. One to which that reward does not apply is neither
right nor wrong, and is left out.

What is covered: exact estimators, intervals that do not collapse at 0 % and 100 %, the same digits on every run.
What is not covered: comparing two policies on rewards that are not 0 or 1 (use `bootstrap` on the differences).
"""

from oncurve.evaluate.estimators import (
    Interval as Interval,
    bootstrap as bootstrap,
    maj_at_k as maj_at_k,
    paired_difference as paired_difference,
    pass_at_k as pass_at_k,
    wilson as wilson,
)
from oncurve.evaluate.evaluation import (
    EVALUATION_DRAW as EVALUATION_DRAW,
    NO_VERIFIER as NO_VERIFIER,
    Evaluation as Evaluation,
    evaluate as evaluate,
    part_is_1 as part_is_1,
)
