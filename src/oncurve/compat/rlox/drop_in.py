"""rlox's `GRPO` with its own algorithm."""

from typing import ClassVar

from oncurve.compat import token_grpo


class GRPO(token_grpo.GRPO):
    """`oncurve.GRPO` whose algorithm is rlox's where no `preset` chooses another one.

        loss = -mean_i(A_i Σ_t log π(y_it)) + β mean_it(log π(y_it) - log π_ref(y_it))

    with the advantages of `compute_batch_group_advantages`. Different from rlox: completions are sampled here, not by
    the model's `generate`; `reward_fn` gets them without their prompts; the prompt's tokens are not trained.
    """

    preset: ClassVar[str] = "rlox"
