"""`[engine]`: where completions are sampled."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from oncurve.components import Component
from oncurve.rollout.engine import InProcessEngine, RolloutEngine
from oncurve.rollout.sampling import Sampling
from oncurve.rollout.stopping import Tokenizer


class EngineConfig(Protocol):
    """Settings that build an engine."""

    exact: ClassVar[bool]
    """The engine's own `exact`, known before it is built, for the plan. A class may also state
    `records_kept_sets = True`: its completions have the kept sets of truncated sampling."""

    def build(
        self, sampling: Sampling, tokenizer: Tokenizer | None, eos_ids: Sequence[int], seed: int
    ) -> RolloutEngine:
        """Return an engine for training rollouts by `sampling`, unless a call brings its own.

        tokenizer   for texts and stop strings; None: every text is ""
        eos_ids     token ids that end a completion, those of the model; `sampling.eos_ids` are added
        seed        the run's
        """
        ...


class LocalEngine(Component):
    """Samples in the training process, with the very module that is trained (`kind = "local"`)."""

    exact: ClassVar[bool] = True
    records_kept_sets: ClassVar[bool] = True

    def build(
        self, sampling: Sampling, tokenizer: Tokenizer | None, eos_ids: Sequence[int], seed: int
    ) -> RolloutEngine:
        """Return an `InProcessEngine`."""
        return InProcessEngine(sampling, tokenizer, eos_ids, seed)


ENGINE_KINDS: dict[str, type[Component]] = {"local": LocalEngine}
