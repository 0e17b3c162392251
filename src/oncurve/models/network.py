"""The fast path: a transformers causal LM whose attention is ours, so prompts are computed once per group.

One module, one copy of the weights: the learner trains the very parameters the sampler reads. The module is used as it
is; its attention is switched for the length of a call. The form of a computation goes by the device:

    CPU     attention on padded rows, decoding by cohorts of rows      `packed_rows`, `host_loop`
    CUDA    attention by flash kernels, decoding in CUDA graphs        `flash`, `graph_loop`

The CUDA forms run on a CPU too, where the tests compare them with the others.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oncurve.models.adapters.adapter import Adapter
from oncurve.models.attention.flash import FlashContext
from oncurve.models.attention.hook import AttentionContext, switched
from oncurve.models.attention.packed_rows import PackedContext
from oncurve.models.causal import Decoder, TokenLoop, module_device
from oncurve.models.decode.cached_decoder import CachedDecoder
from oncurve.models.decode.graph_buffers import GraphBuffers, capture_on
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.head.linear_logprobs import matrix_of
from oncurve.models.layers.blocks import Block, Shared, StraightBody, blocks_of, hooked, is_straight
from oncurve.models.layers.lengths import check_rows, longest_row_of
from oncurve.models.layers.prepacked_weights import Joined, PrepackedWeights, join, prepack
from oncurve.models.layers.rms_norm import keeps_a_wide_residual, narrow_positions
from oncurve.ops import at_least_float32


class TransformersModel:
    """A `CausalModel` over a `transformers.PreTrainedModel` with a language-model head.

    Nothing is checked here: `probe.wrap` decides whether a module may come this way.
    """

    fast = True

    def __init__(
        self,
        module: nn.Module,
        path_reason: str = "fast path: prompts once per group, cached decoding",
        adapter: Adapter | None = None,
    ) -> None:
        network: Any = module.eval()
        self.module = module
        self.path_reason = path_reason
        self.adapter = adapter
        self._body: Any = network.get_decoder()
        self._head: Any = network.get_output_embeddings()
        self._embedding: Any = network.get_input_embeddings()
        self._buffers: GraphBuffers | None = None
        self._joined: Joined = {}
        self._blocks: list[Block] = blocks_of(self._body)
        self._shared = self._blocks[0].shared if self._blocks else Shared()
        self._straight: bool | None = None  # not known before the first decoder
        self._wide = keeps_a_wide_residual(self._body)
        self._hooks = narrow_positions(self._body) if self._wide else []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy: it shares the buffers for decoding, which are made now if there are none."""
        self.token_loop()
        return {**vars(self), "_joined": {}}

    @property
    def longest_row(self) -> int | None:
        """The most tokens of a row, by the module's configuration."""
        return longest_row_of(self.module)

    def release(self) -> None:
        """Remove the hooks that this object has put on its module, before the module is used alone."""
        for hook in self._hooks:
            hook.remove()

    def _run(
        self, ids: Tensor, positions: Tensor, context: AttentionContext, prepacked: PrepackedWeights | None = None
    ) -> Tensor:
        """Return the body over one flat row: `(N,)` ids and positions -> `(N, H)` after the final norm.

        Where the weights are half precision the sum of the layers is kept in float32: rounded after every layer, it
        would make sampler and learner differ, because they add in another order.
        """
        if self.module.training:  # after a call of train() dropout would make sampler and learner disagree
            self.module.eval()
        inputs = {"input_ids": ids[None]}
        if self._wide and self._embedding.weight.dtype.itemsize < 4:
            inputs = {"inputs_embeds": self._embedding(ids[None]).float()}
        with switched(self._body.config), self._shared.using(prepacked or {}):
            outputs = self._body(**inputs, position_ids=positions[None], use_cache=False, oncurve_context=context)
        hidden: Tensor = outputs[0][0]
        return hidden

    def _products(self) -> dict[nn.Module, list[list[nn.Module]]]:
        return {block: block.groups() for block in self._blocks}

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return hidden states `(N, H)`, each prompt computed once per group."""
        check_rows(self.module, prompts, group_ids, completion_ids, lengths)
        device = module_device(self.module)
        context = packed_context(device)(prompts, group_ids, completion_ids, lengths, device)
        return context.predicting(self._run(context.ids, context.positions, context))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return `(n, H)` -> `(n, V)`, in float32 at least."""
        return at_least_float32(self.raw_logits(hidden))

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return `logits` in the type that the head computes in."""
        logits: Tensor = self._head(hidden)
        return logits

    def head_matrix(self) -> Tensor | None:
        """Return the head's matrix, where it is nothing else."""
        return matrix_of(self._head)

    def token_loop(self, truncated: bool = False) -> TokenLoop:
        """In CUDA graphs on CUDA, whose buffers are kept from rollout to rollout; elsewhere with a cached decoder.

        Kept sets have no fixed size, as a graph's tensors do: with them there are no graphs.
        """
        device = module_device(self.module)
        if self._buffers is None and (capture := capture_on(device)) is not None:
            self._buffers = GraphBuffers(device, capture)
        if self._buffers is None or truncated:
            return HostLoop(self.decoder, device)
        self._joined = join(self._products(), self._joined)
        run = partial(self._run, prepacked=self._joined)
        return GraphLoop(self._buffers, run, self.module, self.raw_logits)

    def free_decoding(self) -> bool:
        """Free cache and graphs, which the next rollout makes again; return whether there were any."""
        kept = self._buffers is not None and self._buffers.rows > 0
        if self._buffers is not None:
            self._buffers.release()
        return kept

    def decoder(self, rows: int, max_new_tokens: int) -> Decoder:
        """Return a cached decoder for about `rows` rows of at most `max_new_tokens` tokens."""
        prepacked = prepack(self._products() | ({self._head: [[self._head]]} if self._blocks else {}), rows)
        head = prepacked.get(self._head, ())
        device = module_device(self.module)
        if self._straight is None and device.type == "cpu":
            self._straight = is_straight(self._body, self._wide, self._run)
        straight = self._straight and device.type == "cpu" and not hooked(self._body)
        run = StraightBody(self._body, self._wide, prepacked) if straight else partial(self._run, prepacked=prepacked)
        return CachedDecoder(run, head[0] if head else self.raw_logits, max_new_tokens, device)


def packed_context(device: torch.device) -> type[PackedContext]:
    """Return the attention of the packed training mode."""
    return FlashContext if device.type == "cuda" else PackedContext
