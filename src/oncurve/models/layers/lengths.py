"""The length limit of a row, by the positions of a network and the reach of its rotations; batches by length."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.models.layers.rotation import reach_of

_NAMES = ("max_position_embeddings", "max_target_positions")


def positions_of(module: nn.Module) -> int | None:
    """Return the positions of `module`: how many tokens of a row may be *fed*; None: its configuration has no number.

    A table of positions that begins after a padding index, as RoBERTa's does, has that many fewer. A number that is not
    above 0, such as XLNet's -1, is no limit.
    """
    positions = stated_positions(getattr(module, "config", None))
    if positions is None:
        return None
    tables = [
        part.num_embeddings - part.padding_idx - 1
        for name, part in module.named_modules()
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None
    ]
    return min([positions, *tables])


def stated_positions(config: Any) -> int | None:
    """Return the positions that a network's configuration states; None: it has no number."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    stated = (getattr(text_config, name, None) for name in _NAMES)
    return next((number for number in stated if isinstance(number, int) and number > 0), None)


def longest_row_of(module: nn.Module) -> int | None:
    """Return the most tokens a row may have, prompt and completion together; None: any.

    One more than the positions, because a row's last token is sampled and never fed; fewer where a run has fixed the
    reach of a rotation that depends on it (`rotation`).
    """
    positions, reach = positions_of(module), reach_of(module)
    limits = ([] if positions is None else [positions + 1]) + ([] if reach is None else [reach])
    return min(limits, default=None)


def check_rows(
    module: nn.Module, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
) -> None:
    """Refuse what `completion_hidden` of `module` cannot take.

    Raises:
        ValueError: an empty prompt, or shapes that do not belong together.
        ModelError: a row is longer than `longest_row_of`.
    """
    if any(prompt.ndim != 1 or prompt.numel() == 0 for prompt in prompts):
        raise ValueError("every prompt must be a (P,) tensor of at least one token id")
    rows = completion_ids.shape[0]
    if completion_ids.ndim != 2 or group_ids.shape != (rows,) or lengths.shape != (rows,):
        raise ValueError(
            f"completion_ids (b, T), group_ids (b,) and lengths (b,) do not belong together: "
            f"{tuple(completion_ids.shape)}, {tuple(group_ids.shape)}, {tuple(lengths.shape)}"
        )
    longest = longest_row_of(module)
    if longest is None or not rows:
        return
    sizes = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=group_ids.device)
    tokens = int((sizes[group_ids] + lengths.to(group_ids.device)).max())
    if tokens > longest:
        raise ModelError(
            f"a row of {tokens} tokens, prompt and completion together: {type(module).__name__} takes at most {longest}"
        )


def batches_by_length(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Indices by falling length, in batches that have at most `tokens` tokens when padded to the longest.

    One that is longer is a batch by itself.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
