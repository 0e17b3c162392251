"""The correctness of the CUDA forms: each against the plain one, on the same weights and rows, for `bench.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.models import Size
from oncurve.models import TransformersModel
from oncurve.models.attention.flash import FlashContext
from oncurve.models.attention.packed_rows import PackedContext
from oncurve.models.causal import DecodeRequest, module_device
from oncurve.models.decode.graph_buffers import GraphBuffers, capture_on
from oncurve.models.decode.graph_loop import GraphLoop
from oncurve.models.decode.host_loop import HostLoop
from oncurve.models.head.linear_logprobs import linear_logprobs
from oncurve.models.layers.blocks import replace_blocks
from oncurve.models.layers.prepacked_weights import join
from oncurve.models.layers.rms_norm import replace_norms
from oncurve.models.network import packed_context
from oncurve.models.probe import forced_logits
from oncurve.randomness import row_keys
from oncurve.rollout.sampler import Sampler

SMALL = Size(896, 4, 14, 2, 4864, vocabulary=8192)
TOY = Size(64, 2, 4, 2, 96, vocabulary=512)
LENGTHS = (200, 37, 90, 151)
COPIES, LONGEST = 4, 120


class GpuModel(TransformersModel):
    """A model whose packed attention and decoding are those of its device, whatever the package would choose."""

    def __init__(self, module: Any, device: torch.device) -> None:
        super().__init__(module)
        self.buffers = GraphBuffers(device, capture_on(device))
        run = partial(self._run, prepacked=join(self._products(), {}))
        self.graph_loop = GraphLoop(self.buffers, run, self.module, self.raw_logits)
        self.host_loop = HostLoop(self.decoder, device)
        self._context = packed_context(device)

    def hidden(
        self, kind: type[PackedContext], prompts: Sequence[Tensor], groups: Tensor, ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return `completion_hidden` by a given form of attention."""
        context = kind(prompts, groups, ids, lengths, module_device(self.module))
        return context.predicting(self._run(context.ids, context.positions, context))

    def completion_hidden(
        self, prompts: Sequence[Tensor], group_ids: Tensor, completion_ids: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return `hidden` by the form of the device."""
        return self.hidden(self._context, prompts, group_ids, completion_ids, lengths)


def build(size: Size, device: torch.device, dtype: torch.dtype) -> GpuModel:
    """Return a model of the shape with random weights."""
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(0)
    config = size.config()
    with torch.device(device):
        module = Qwen2ForCausalLM(config).to(dtype)
    replace_norms(module)
    replace_blocks(module)
    return GpuModel(module, device)


def one(name: str, device: torch.device) -> dict[str, Any]:
    """Return a check's figure, its limit, and whether it holds."""
    check, limit, at_least = CHECKS[name]
    value = check(device)
    return {"value": value, "limit": limit, "passed": bool(value >= limit if at_least else value <= limit)}


def _shape(device: torch.device) -> Size:
    return SMALL if device.type == "cuda" else TOY


def _rows(device: torch.device) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return prompts, groups, completion ids and lengths: ragged all over."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, count = _shape(device).vocabulary, len(LENGTHS) * COPIES
    prompts = [torch.randint(vocabulary, (length,), generator=generator).to(device) for length in LENGTHS]
    ids = torch.randint(vocabulary, (count, LONGEST), generator=generator)
    lengths = torch.randint(1, LONGEST + 1, (count,), generator=generator)
    groups = torch.arange(len(LENGTHS)).repeat_interleave(COPIES)
    return prompts, groups.to(device), ids.to(device), lengths.to(device)


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def _cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    left, right = (torch.cat([x.double().flatten() for x in many]) for many in (ours, theirs))
    return float(left @ right / (left.norm() * right.norm()))


def _head(dtype: torch.dtype, device: torch.device) -> float:
    """Return the fused head's gradient against float64's with all logits: cosine."""
    size = _shape(device)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(700, size.hidden, generator=generator).to(device, dtype).requires_grad_()
    weight = (torch.randn(size.vocabulary, size.hidden, generator=generator) / 20).to(device, dtype).requires_grad_()
    ids = torch.randint(size.vocabulary, (700,), generator=generator).to(device)
    signs = torch.cos(torch.arange(700, device=device))
    logprobs, _ = linear_logprobs(hidden, weight, ids, 0.9, with_entropy=True, kept_bytes=0, workspace_bytes=1 << 20)
    ours = torch.autograd.grad((logprobs * signs).sum(), (hidden, weight))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    table = torch.log_softmax(exact[0] @ exact[1].t() / 0.9, -1).gather(1, ids[:, None]).squeeze(1)
    return _cosine(ours, torch.autograd.grad((table * signs).sum(), exact))


def _attention(dtype: torch.dtype, of_gradient: bool, device: torch.device) -> float:
    """Flash attention's hidden states (relative difference) or gradients (cosine) against those of padded rows."""
    model = build(_shape(device), device, dtype)
    results = []
    for kind in (packed_context(device), PackedContext):
        hidden = model.hidden(kind, *_rows(device))
        signs = torch.cos(torch.arange(hidden.numel(), device=device)).view_as(hidden)
        trained = [parameter for parameter in model.module.parameters() if parameter.ndim == 1]
        gradient = torch.autograd.grad((hidden.float() * signs).sum(), trained) if of_gradient else ()
        results.append((hidden.detach(), gradient))
    (ours, by_ours), (theirs, by_theirs) = results
    return _cosine(by_ours, by_theirs) if of_gradient else _relative(ours, theirs)


def _kernel(device: torch.device) -> float:
    """Return 1 where the flash kernels were believed and used, 0 where padded rows stepped in."""
    from oncurve.models.attention import flash

    if device.type == "cuda":
        build(_shape(device), device, torch.bfloat16).hidden(FlashContext, *_rows(device))
    return float(all(reason is None for reason in flash._TRIED.values()))


@torch.no_grad()
def _decoder(device: torch.device) -> float:
    """Return logits of the loop in graphs against those of the loop on the host, rows ending on the way: float32."""
    model = build(_shape(device), device, torch.float32)
    prompts, _, ids, lengths = _rows(device)
    lengths = lengths.view(-1, COPIES)
    loops = (model.graph_loop, model.host_loop)
    ours, theirs = (forced_logits(loop, prompts, ids.view(-1, COPIES, LONGEST), lengths) for loop in loops)
    if model.buffers.capture is None and device.type == "cuda":
        raise RuntimeError("nothing was captured: see the warning")
    columns = (torch.arange(LONGEST, device=device) < lengths[..., None]).unbind(2)
    pairs = [(ours[:, :, t][there], theirs[:, :, t][there]) for t, there in enumerate(columns)]
    return max(_relative(*pair) for pair in pairs if len(pair[0]))


def _request(prompts: Sequence[Tensor], keys: Tensor, ends: Sequence[int], rows: int | None = None) -> DecodeRequest:
    """Return completions of `LONGEST` tokens, unless one of `ends` is drawn."""
    by_group = keys.view(len(prompts), -1)
    limits = torch.full_like(by_group, LONGEST)
    return DecodeRequest(prompts, by_group, limits, LONGEST, ends, Sampler(1.0), None, rows)


@torch.no_grad()
def _sampled(device: torch.device) -> float:
    """Return the share of completions that are token by token those of the loop that looks at every token: float32."""
    model = build(_shape(device), device, torch.float32)
    prompts, groups, _, _ = _rows(device)
    keys = row_keys(1, 2, groups.cpu(), torch.arange(COPIES).repeat(len(prompts)))
    wanted = model.host_loop(_request(prompts, keys, [3]))
    got = [model.graph_loop(_request(prompts, keys, [3], rows)) for rows in (None, 2 * COPIES)]
    equal = [left.ids == right.ids for rows in got for left, right in zip(rows, wanted, strict=True)]
    return sum(equal) / len(equal)


@torch.no_grad()
def _mismatch(dtype: torch.dtype, wide: bool, device: torch.device) -> float:
    """Mean difference of a sampled token's log-probability between sampler and learner; `wide`: float32 logits."""
    model = build(_shape(device), device, dtype)
    own = model.head_matrix()
    assert own is not None
    if wide:
        model.raw_logits = lambda hidden: hidden.float() @ own.float().t()  # type: ignore[method-assign]
        model.graph_loop = GraphLoop(model.buffers, model._run, model.module, model.raw_logits)
    prompts, groups, _, _ = _rows(device)
    keys = row_keys(3, 4, groups.cpu(), torch.arange(COPIES).repeat(len(prompts)))
    rows = model.graph_loop(_request(prompts, keys, []))
    ids = torch.tensor([row.ids for row in rows], device=device)
    lengths = torch.full((len(rows),), LONGEST, device=device)
    hidden, matrix = model.completion_hidden(prompts, groups, ids, lengths), own
    if wide:
        hidden, matrix = hidden.float(), own.float()
    scored, _ = linear_logprobs(hidden, matrix, ids.flatten())
    sampled = torch.tensor([row.logprobs for row in rows], device=device).flatten()
    return float((scored - sampled).abs().mean())


HALF, FULL = torch.bfloat16, torch.float32
CHECKS: dict[str, tuple[Callable[[torch.device], float], float, bool]] = {
    "fused head, gradient cosine, float32": (partial(_head, FULL), 1 - 1e-9, True),
    "fused head, gradient cosine, bfloat16": (partial(_head, HALF), 0.9999, True),
    "attention, hidden states, float32": (partial(_attention, FULL, False), 1e-4, False),
    "attention, gradient cosine, float32": (partial(_attention, FULL, True), 1 - 1e-7, True),
    "attention, gradient cosine, bfloat16": (partial(_attention, HALF, True), 0.9995, True),
    "attention, the kernel is used": (_kernel, 1, True),
    "decoding in graphs, logits, float32": (_decoder, 1e-4, False),
    "decoding in graphs, equal completions, float32": (_sampled, 0.9, True),
    "sampler and learner, mean difference, float32": (partial(_mismatch, FULL, False), 1e-5, False),
    "sampler and learner, mean difference, bfloat16": (partial(_mismatch, HALF, False), 2e-3, False),
    "sampler and learner, mean difference, bfloat16, float32 logits": (partial(_mismatch, HALF, True), 2e-3, False),
}
"""Name -> (check, limit, whether more is better)."""
