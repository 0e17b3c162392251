"""The interfaces of other tools, on top of the same rooms."""

from oncurve.compat.rlox import (
    GRPO as GRPO,
    compute_batch_group_advantages as compute_batch_group_advantages,
    compute_group_advantages as compute_group_advantages,
)
