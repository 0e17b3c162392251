"""Decoding in fixed slots: the attention of one step, whichever groups they hold and however far each row has come."""

import math

import pytest
import torch

from oncurve.models.decode.prefill import Prefixes
from oncurve.models.decode.static_cache import CacheShape, StaticCache, StaticContext

SHAPE = CacheShape(groups=3, copies=2, prompt_tokens=7, new_tokens=9)
KV_HEADS, SHARED, SIZE = 2, 3, 4
HEADS = KV_HEADS * SHARED


def prefixes_of(*lengths, generator):
    prefixes = Prefixes(torch.tensor(lengths))
    shape = (len(lengths), KV_HEADS, max(lengths), SIZE)
    prefixes.layers[0] = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return prefixes


def one_by_one(query, keys, values, window):
    """Attention `(h, d)` of one query over all keys `(k, h_kv, d)` before and at it, written out."""
    keys, values = keys[-window:] if window else keys, values[-window:] if window else values
    attended = torch.empty(HEADS, SIZE, dtype=torch.float64)
    for head in range(HEADS):
        scores = keys[:, head // SHARED] @ query[head] / math.sqrt(SIZE)
        attended[head] = torch.softmax(scores, 0) @ values[:, head // SHARED]
    return attended


class Twin:
    """Rows as lists of keys and values, by slot and copy."""

    def __init__(self):
        self.rows = {}

    def insert(self, slot, prefixes, prompt):
        length = int(prefixes.lengths[prompt])
        key, value = (x[prompt, :, :length].transpose(0, 1) for x in prefixes.layers[0])
        for copy in range(SHAPE.copies):
            self.rows[slot, copy] = [key, value]

    def attend(self, query, key, value, window):
        attended = torch.zeros(len(query), HEADS, SIZE, dtype=torch.float64)
        for (slot, copy), written in self.rows.items():
            row = slot * SHAPE.copies + copy
            written[:] = (torch.cat([old, new[row : row + 1]]) for old, new in zip(written, (key, value), strict=True))
            attended[row] = one_by_one(query[row], *written, window)
        return attended


@pytest.mark.parametrize("window", [None, 1, 4, 12])
@torch.no_grad()
def test_attention_is_that_of_each_row_by_itself_whenever_groups_come_and_go(window):
    generator = torch.Generator().manual_seed(0)
    cache, twin = StaticCache(SHAPE, torch.device("cpu")), Twin()

    def insert(slot, prefixes, prompt):
        cache.insert(slot, prefixes, prompt)
        twin.insert(slot, prefixes, prompt)

    def step(slots, width):
        rows = slots * SHAPE.copies
        shapes = ((rows, HEADS, SIZE), (rows, KV_HEADS, SIZE), (rows, KV_HEADS, SIZE))
        query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        lengths = [len(twin.rows[slot, copy][0]) for slot in range(slots) for copy in range(SHAPE.copies)]
        assert cache.positions(slots).tolist() == lengths
        got = StaticContext(cache, slots, width).attend(0, query, key, value, SIZE**-0.5, window)
        wanted = twin.attend(query, key, value, window)
        cache.steps[:rows] += 1
        assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12)

    first = prefixes_of(7, 2, 4, generator=generator)
    for slot in range(3):
        insert(slot, first, slot)
    for width in (1, 4, 4, 9):
        step(3, width)
    later = prefixes_of(3, 5, generator=generator)
    insert(1, later, 1)  # the group of slot 1 is done, another takes it
    step(3, 9)
    twin.rows = {(slot, copy): row for (slot, copy), row in twin.rows.items() if slot < 2}
    step(2, 6)  # the first slots alone, and no more positions than are written
    step(2, 7)
    twin.rows = {(slot, copy): row for (slot, copy), row in twin.rows.items() if slot < 1}
    step(1, 9)
