"""The whole algorithm again, slow and obvious: what the fast one must agree with, one file per axis of choice.

Written from the formulas of DeepSeekMath (arXiv:2402.03300), PPO (1707.06347), Dr.GRPO (2503.20783), DAPO
(2503.14476), GSPO (2507.18071), GMPO (2507.20673), CISPO (2506.13585), SAPO (2511.20347) and DPPO (2602.04879), with
Python loops over groups, completions and tokens. It imports nothing from oncurve.

Covered: outcome advantages (group, batch or no standard deviation), the objectives clipped, sequence_product, gspo,
gmpo, cispo, sapo, dppo and reinforce, every KL estimator in the loss, the entropy bonus, all five aggregations, of the
KL term too, gradient-norm clipping, AdamW.
Weights of the policy term come with the groups.
Not covered: sampling, process supervision, critics, KL in the reward.

GRPO alone, as an essay that runs: `examples/grpo_in_one_file.py`.
"""

from oracles.plain_grpo.adamw import PlainAdamW as PlainAdamW
from oracles.plain_grpo.advantages import advantages as advantages
from oracles.plain_grpo.aggregation import aggregate as aggregate
from oracles.plain_grpo.kl import kl_term as kl_term
from oracles.plain_grpo.loss import (
    aggregated as aggregated,
    reference_loss as reference_loss,
    reference_rows as reference_rows,
    reference_step as reference_step,
)
from oracles.plain_grpo.objectives import surrogate as surrogate
from oracles.plain_grpo.settings import PlainConfig as PlainConfig, PlainGroup as PlainGroup
