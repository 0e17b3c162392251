"""Measures of a policy: greedy accuracy, mean reward, pass@k and maj@k, each with a 95 % interval.

A completion is *correct* where its score is valid and the one reward that checks answers gives it 1, whatever the
rewards weigh (`part_is_1`); where there is no such reward, accuracy, pass@k and maj@k are not given. A completion that
could not be scored is not correct, and is counted in `invalid`. One to which that reward does not apply is neither
right nor wrong, and is left out.

What is covered: exact estimators, intervals that do not collapse at 0 % and 100 %, the same digits on every run.
What is not covered: comparing two policies on rewards that are not 0 or 1 (use `bootstrap` on the differences).
"""

from oncurve.evaluate.estimators import Interval, bootstrap, maj_at_k, paired_difference, pass_at_k, wilson
from oncurve.evaluate.evaluation import EVALUATION_DRAW, NO_VERIFIER, Evaluation, evaluate, part_is_1
