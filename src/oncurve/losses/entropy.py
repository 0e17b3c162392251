"""The entropy bonus, and the control of its coefficient (MAGIC, Skywork-OR1, arXiv:2505.22312)."""

from typing import ClassVar

from pydantic import Field

from oncurve.components import Component, Impossible, Inert
from oncurve.losses.kinds import Apart


class EntropyBonus(Component):
    """An entropy bonus in the loss, `-α H` per token; constant, or adapted to a target entropy.

    With a target α belongs to a step k, and follows from the entropy e of the steps before:

        c_{k+1} = max(0, c_k + Δ) if e_k < target, max(0, c_k - Δ) if e_k > target, else c_k;   c_1 = `coef`
        α_{k+1} = c_{k+1} if e_k <= target, else 0;   α_1 = 0, because no entropy is known yet

    So the bonus grows while the entropy is too low, and acts only then. The paper measures e_k before step k's update
    and uses it in that step; here it comes out of the update's own forward pass and counts from the next step on.
    """

    coef: float = 0.0
    """The coefficient of each token's entropy; 0: no bonus. With `target`, the first value of the adapted one."""

    target: float | None = Field(default=None, gt=0)
    """The entropy, in nats per token, below which the bonus acts, with a coefficient that grows until the entropy is
    back; none: the coefficient stays as it is."""

    step: float = Field(default=0.005, gt=0)
    """By how much the coefficient changes per step, with `target`."""

    aggregation: Apart = None
    """How the bonus adds up over tokens, a kind of `[aggregation]`; none: as the objective does. Next to
    `kl.aggregation` it is the same."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda bonus: bonus.target is not None and bonus.coef < 0,
            "entropy.coef: below 0 it lowers the entropy, and entropy.target raises it; set it to 0 or more",
        ),
    )
    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("entropy.step",),
            ("entropy.target",),
            lambda bonus: bonus.target is None,
            "without entropy.target the coefficient is constant",
        ),
        Inert(
            ("entropy.aggregation",),
            ("entropy.coef",),
            lambda bonus: bonus.coef == 0 and bonus.target is None,
            "entropy.coef = 0 means that there is no bonus",
        ),
    )

    def steered(self, coef: float, entropy: float) -> float:
        """c_{k+1}, from c_k = `coef` and e_k = `entropy`; without a target `coef`."""
        if self.target is None or entropy == self.target:
            return coef
        return max(0.0, coef + self.step if entropy < self.target else coef - self.step)

    def in_force(self, coef: float, entropy: float | None) -> float:
        """Return α_{k+1}, from c_{k+1} = `coef` and e_k = `entropy` (None: not known yet); without a target `coef`."""
        if self.target is None:
            return coef
        return coef if entropy is not None and entropy <= self.target else 0.0
