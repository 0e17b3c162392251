"""The settings of an adapter: the section `[lora]`."""

from typing import ClassVar, Literal

from pydantic import Field

from oncurve.components import Component, Impossible, Inert


class LoraSettings(Component):
    """A low-rank adapter (LoRA) that is trained instead of the model's weights, which stay as they are."""

    rank: int = Field(default=0, ge=0, le=10**4)
    """The rank r of each layer's product; 0: no adapter, all weights are trained."""

    alpha: float | None = Field(default=None, gt=0, le=1e6)
    """α: the product is scaled by α / rank; none: 2 · rank."""

    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The linear layers that get a product, by the ends of their names, like `["q_proj", "v_proj"]`; "all-linear": all
    but the language-model head."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Must be 0: with dropout the learner's log-probs would not be the sampler's."""

    path: str | None = None
    """A trained adapter to go on from: a folder in PEFT's form, or a hub id. Rank, α and targets are the adapter's."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda s: s.dropout > 0,
            "lora.dropout: dropout makes the learner's log-probs differ from the sampler's, at random, so that the "
            "importance ratio is not 1 on-policy; set it to 0.0",
        ),
        Impossible(lambda s: s.targets == (), 'lora.targets: no layer is named; leave it "all-linear", or name some'),
    )
    inert: ClassVar[tuple[Inert, ...]] = (
        Inert(
            ("lora.alpha", "lora.targets"),
            ("lora.rank",),
            lambda s: not s.adapted,
            "lora.rank = 0 means that there is no adapter",
        ),
        Inert(
            ("lora.rank", "lora.alpha", "lora.targets"),
            ("lora.path",),
            lambda s: s.path is not None,
            "the adapter at lora.path has its own",
        ),
    )

    @property
    def adapted(self) -> bool:
        """Return whether an adapter is trained."""
        return self.rank > 0 or self.path is not None

    @property
    def scaled_by(self) -> float:
        """α."""
        return 2.0 * self.rank if self.alpha is None else self.alpha
