"""The scorers of reasoning-gym, in workers: some of them evaluate the text of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from oncurve.rewards.functions.answers import final_answer, text_after
from oncurve.rewards.functions.callables import Accepts
from oncurve.rewards.settings import Runner, WorkerSettings
from oncurve.tasks import reasoning_dataset


class ReasoningGym(WorkerSettings):
    """The score, from 0 to 1, that the data set of `[data] kind = "reasoning_gym"` gives the answer."""

    scores_steps: ClassVar[bool] = False
    verifies: ClassVar[bool | None] = True
    default: ClassVar[str | None] = "reasoning_gym"

    after: str | None = None
    """Only the text after the last occurrence of this is the answer (`<answer>`); none: the marked answer
    (`#### 5`, `\\boxed{5}`), or all of the text."""

    def start(self, base: Path | None) -> Runner:
        """Run in workers."""
        return self.workers(f"{__name__}:Scored", {"after": self.after})


class Scored:
    """The worker's side, which makes the entry again that a row is about."""

    about = Accepts(needs=(("completion",), ("dataset",), ("index",))).as_json()

    def __init__(self, after: str | None) -> None:
        self._after = after

    def __call__(self, item: Mapping[str, Any]) -> float:
        """Return the score of a completion."""
        text = text_after(item["completion"], self._after)
        marked = final_answer(item["completion"]) if self._after is None else text
        answer = text if marked is None else marked
        dataset = reasoning_dataset(item["dataset"])
        return 0.0 if answer is None else float(dataset.score_answer(answer.strip(), dataset[item["index"]]))
