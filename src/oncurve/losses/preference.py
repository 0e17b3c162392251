"""Losses that train reward models: preference pairs (Bradley-Terry) and labelled steps (cross-entropy).

Sources: Bradley and Terry, Biometrika 39 (1952); on language models Ouyang et al., arXiv:2203.02155, eq. 1; the margin
of Touvron et al., arXiv:2307.09288, eq. 2; rewards centred at 0 as in Eisenstein et al., arXiv:2312.09244; labelled
steps: Lightman et al., arXiv:2305.20050, with soft labels Wang et al., arXiv:2312.08935, eq. 4.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def bradley_terry(
    chosen: Float[Tensor, "N"],
    rejected: Float[Tensor, "N"],
    margin: Float[Tensor, "N"] | float = 0.0,
    center: float = 0.0,
) -> Float[Tensor, "N"]:
    """Return the loss of each pair, `-ln σ(r_chosen - r_rejected - m) + c (r_chosen + r_rejected)²`.

    Args:
        chosen, rejected: rewards `(N,)`.
        margin: m, by how much the one should win, `(N,)` or one for all.
        center: c, how much rewards are drawn towards 0; a pair's loss knows only their difference.

    Returns `(N,)`, at least 0. Example: equal rewards cost ln 2 = 0.6931.
    """
    loss = -logsigmoid(chosen - rejected - margin)
    return loss + center * (chosen + rejected).square() if center else loss


def step_cross_entropy(verdicts: Float[Tensor, "S"], labels: Float[Tensor, "S"]) -> Float[Tensor, "S"]:
    """Return the loss of each step, `-(y ln p + (1 - y) ln (1 - p))` with p = σ(verdict).

    Args:
        verdicts: log-odds that the step is right `(S,)`.
        labels: y in 0 ... 1 `(S,)`: whether it is, or the share of its continuations that reached the right answer.

    Returns `(S,)`. Example: verdict 0 costs ln 2 whatever the label.
    """
    return binary_cross_entropy_with_logits(verdicts, labels.to(verdicts.dtype), reduction="none")
