"""Dynamic sampling: which groups a step trains on, and the groups that it leaves to the next step.

Yu et al., DAPO, arXiv:2503.14476, section 3.2: prompts are sampled until the batch is full of groups with

    0 < |{o_i : o_i is right}| < G

A group of which all or no completions are right has the same outcome for each: its advantages, and its gradient, are 0.
A completion to which the verifier does not apply is neither right nor wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from oncurve import durable
from oncurve.base.errors import CheckpointError
from oncurve.types import Completion, Group, Prompt, Score

FILE = "surplus.jsonl"


@dataclass
class DynamicSampling:
    """The choice of groups that are kept, and the most rounds of sampling that a step takes to find enough of them.

    max_rounds      each draws `data.prompts_per_step` prompts, until as many groups are kept
    correct         whether a completion is right, whatever its reward, None where that is not known; without it, and
                    where it is not known of any completion, a group is kept where its rewards differ
    mask_truncated  truncated completions are not trained, so that a group without any other is not kept
    announced       a step that ended at `max_rounds` has been announced
    """

    max_rounds: int
    correct: Callable[[Score], bool | None] | None
    mask_truncated: bool = False
    announced: bool = False

    def keeps(self, group: Group) -> bool:
        """Return whether a scored group has right and wrong valid completions, and one that is trained."""
        pairs = [(c, s) for c, s in zip(group.completions, group.scores, strict=True) if s.valid]
        verdicts = {None if self.correct is None else self.correct(score) for _, score in pairs} - {None}
        outcomes = len(verdicts) or len({score.reward for _, score in pairs})
        return outcomes > 1 and any(self._is_trained(completion) for completion, _ in pairs)

    def _is_trained(self, completion: Completion) -> bool:
        masked = self.mask_truncated and completion.truncated
        return not masked and (completion.trained is None or any(completion.trained))


@dataclass(frozen=True)
class SurplusGroup:
    """A scored group that was sampled and kept, and waits for the next step. It is a part of the trainer's state.

    cursor       the position of its prompt in the order of prompts: the prompt itself is read there again
    prompt_ids   the tokens that the completions follow
    row_ids      those that its row had made, where an environment has added to them
    """

    cursor: int
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...]
    draw: int
    row_ids: tuple[int, ...] | None = None

    @classmethod
    def of(cls, cursor: int, group: Group) -> SurplusGroup:
        """Return the group whose prompt is at `cursor`."""
        completions = tuple(replace(completion, environment=None) for completion in group.completions)  # scored
        prompt = group.prompt
        return cls(cursor, prompt.ids, completions, group.scores, group.draw, prompt.row_ids)

    def again(self, prompt: Prompt) -> Group | None:
        """Return the group with the prompt that is at its place now; None: that is another one."""
        if prompt.ids != (self.prompt_ids if self.row_ids is None else self.row_ids):
            return None
        prompt = replace(prompt, ids=self.prompt_ids, row_ids=self.row_ids)
        return Group(prompt, self.completions, self.scores, self.draw)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SurplusGroup:
        """The inverse of `asdict`, by way of JSON, which has lists for tuples and text for bytes."""
        kept = [{**each, "kept_ids": bytes.fromhex(each.get("kept_ids", ""))} for each in record["completions"]]
        return TypeAdapter(cls).validate_python({**record, "completions": kept})


def save_surplus(folder: Path, surplus: Sequence[SurplusGroup]) -> None:
    """Write the groups into a checkpoint's folder, one per line; no file where there are none."""
    if surplus:
        lines = [json.dumps(asdict(group), default=bytes.hex) + "\n" for group in surplus]
        durable.write_file(folder / FILE, "".join(lines).encode(), sync=False)


def load_surplus(folder: Path) -> tuple[SurplusGroup, ...]:
    """Return the groups in a checkpoint's folder, as they were, bit for bit. Raises CheckpointError: they cannot be
    read.
    """
    path = folder / FILE
    try:
        return tuple(map(SurplusGroup.from_json, durable.read_log(path))) if path.exists() else ()
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
