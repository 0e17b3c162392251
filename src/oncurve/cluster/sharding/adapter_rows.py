"""The reference of a divided policy with an adapter: the policy's own shards, without a second model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from oncurve.cluster.sharding.divided import Divided
from oncurve.learner import AdapterReference


class AdapterRows(AdapterReference):
    """As `AdapterReference`, its `tensors` being this rank's float32 rows of the factors.

    Within `selected` they are in the policy's place: what is gathered then is the reference's.
    """

    def __init__(self, policy: Divided, begins_as_base: bool) -> None:
        assert policy.model.adapter is not None
        self._adapter = policy.model.adapter
        self._rows = {name: policy.rows[name] for name in self._adapter.parameters}
        self._begin(policy.model, {} if begins_as_base else self._copied())

    def _copied(self) -> dict[str, Tensor]:
        return {name: rows.clone() for name, rows in self._rows.items()}

    @contextmanager
    def selected(self) -> Iterator[None]:
        """Return a context in which the policy's network computes as the reference does, once nothing of it is
        whole.
        """
        if not self.tensors:
            with self._adapter.off():
                yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, mine in self.tensors.items():
            rows = self._rows[name]
            policy = rows.clone()
            rows.copy_(mine)
            mine.copy_(policy)
