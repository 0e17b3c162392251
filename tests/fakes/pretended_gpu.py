"""A pretended GPU: real numbers on a CPU, and a count of what a GPU would have been asked to do.

    device = pretended_gpu.device()
    with pretended_gpu.watch() as seen:
        model(ids.to(device))
    seen.kernels, seen.operations, seen.waits, seen.copies, seen.varying, seen.peak_bytes

The device is a backend in Python for any build of torch. Each tensor on it holds one of the CPU, on which every
operation is run. Before that the operation is looked at:

    kernels     those that CUDA launches for it; a view and an allocation launch none
    waits       the host stops until the device has finished: `item`, `nonzero`, a boolean index, a copy to the host
    copies      tensors that go from the host to the device or back
    varying     operations whose CUDA kernels add in an order that differs from run to run
    refused     tensors of two devices where CUDA refuses them; whatever waits or copies inside `capturing()`

Covered: autograd, in-place and `out=` operations, modules, deep copies, `torch.optim`'s functions. Not covered: time,
streams, races, the rounding of CUDA's kernels, `torch.utils.checkpoint` (torch ends the process there).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fakes.tables import table

NAME = "pretended"
CPU = torch.device("cpu")
aten = torch.ops.aten

KERNELS = table("pretended_gpu", "kernels")
"""Kernels of an operation on CUDA where they are not one, as ATen's sources have them: an estimate."""

FREE = set(table("pretended_gpu", "free"))
"""Operations without a kernel of their own."""

WAITING = set(table("pretended_gpu", "waiting"))

VARYING = set(table("pretended_gpu", "varying"))
"""Of torch's list for `use_deterministic_algorithms`, those that a language model may meet. Beside them: `index_put`
that accumulates, `cumsum` of floating-point numbers."""

VARYING_UNLESS_ASKED = {"embedding_dense_backward"}
"""Those that add in one order where torch's deterministic mode is on."""

TAKES_HOST_INDICES = {"index", "index_put_", "_index_put_impl_", "index_put"}

NEEDS_ONE_DEVICE = set(table("pretended_gpu", "needs_one_device"))
"""Operations that refuse a number of the host, too."""


@dataclass(eq=False)
class Seen:
    """What the device was asked while it was watched."""

    operations: Counter[str] = field(default_factory=Counter)
    """Kernels by operation."""

    waits: Counter[str] = field(default_factory=Counter)
    """By kind and place in the source."""

    copies: Counter[str] = field(default_factory=Counter)
    """Between host and device, by direction and place in the source."""

    varying: Counter[str] = field(default_factory=Counter)
    """By operation and place in the source."""

    peak_bytes: int = 0
    """The most bytes of storages that lived at the same time, in whatever way they came to be."""

    @property
    def kernels(self) -> int:
        return self.operations.total()


@dataclass
class _Device:
    watching: list[Seen] = field(default_factory=list)
    capturing: int = 0
    live_bytes: int = 0
    refused: list[str] = field(default_factory=list)


_device = _Device()


class RefusedError(RuntimeError):
    """CUDA would refuse the operation. `refusals` lists them, for who catches the error."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        _device.refused.append(message)


def refusals() -> list[str]:
    """Return what has been refused since the last call."""
    found, _device.refused = _device.refused, []
    return found


@contextlib.contextmanager
def watch() -> Iterator[Seen]:
    seen = Seen(peak_bytes=_device.live_bytes)
    _device.watching.append(seen)
    try:
        yield seen
    finally:
        _device.watching.remove(seen)


def live_bytes() -> int:
    """Return the bytes of all storages on the device."""
    return _device.live_bytes


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Refuse what a CUDA graph cannot hold."""
    _device.capturing += 1
    try:
        yield
    finally:
        _device.capturing -= 1


class Captures:
    """A maker of CUDA graphs that are none: a graph runs its step again.

    made      graphs so far
    replays   runs of them so far
    seen      what all replays together have asked of the device
    """

    def __init__(self) -> None:
        self.made = self.replays = 0
        self.seen = Seen()

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats `step`, after three runs, and one in which nothing may wait."""
        for _ in range(3):
            step()
        with capturing():
            step()
        self.made += 1

        def replay() -> None:
            self.replays += 1
            _device.watching.append(self.seen)
            try:
                step()
            finally:
                _device.watching.remove(self.seen)

        return replay


def fused(function: Callable[..., Any], name: str, forward: int = 1, backward: int = 1) -> Callable[..., Any]:
    """Return `function` of tensors as a GPU has it, which launches so many kernels; elsewhere it is as it was."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        places = [index for index, arg in enumerate(args) if isinstance(arg, Pretended)]
        if not places:
            return function(*args, **kwargs)
        if torch.is_grad_enabled() and any(args[index].requires_grad for index in places):
            given = (function, name, (forward, backward), args, kwargs, places)
            result = _Fused.apply(given, *(args[index] for index in places))
            return result[0] if len(result) == 1 else result
        _launched(name, forward)
        return _on_device(function(*_raw(args), **_raw(kwargs)))

    return call


class _Fused(torch.autograd.Function):
    """A fused function and its gradient, each of a fixed number of kernels."""

    @staticmethod
    def forward(ctx: Any, given: Any, *tensors: Any) -> Any:
        function, name, kernels, args, kwargs, places = given
        _launched(name, kernels[0])
        ctx.name, ctx.kernels = name, kernels
        ctx.needed = [tensor.requires_grad for tensor in tensors]
        ctx.inputs = [t.raw.detach().requires_grad_(needed) for t, needed in zip(tensors, ctx.needed, strict=True)]
        given_raw = list(_raw(args))
        for index, tensor in zip(places, ctx.inputs, strict=True):
            given_raw[index] = tensor
        with torch.enable_grad():
            outputs = function(*given_raw, **_raw(kwargs))
        ctx.outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(Pretended(output.detach()) for output in ctx.outputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        _launched(f"{ctx.name} backward", ctx.kernels[1])
        wanted = [tensor for tensor, needed in zip(ctx.inputs, ctx.needed, strict=True) if needed]
        given = [(o, s.raw) for o, s in zip(ctx.outputs, slopes, strict=True) if s is not None and o.requires_grad]
        outputs, slopes = zip(*given, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, slopes, allow_unused=True))
        return None, *(_on_device(next(found)) if needed else None for needed in ctx.needed)


class _Storage:
    """The bytes of one storage on the device, for as long as a tensor has it."""

    def __init__(self, size: int) -> None:
        self.size = size
        _device.live_bytes += size
        for seen in _device.watching:
            seen.peak_bytes = max(seen.peak_bytes, _device.live_bytes)

    def __del__(self, device: _Device = _device) -> None:  # names of the module may be gone at the end of a process
        device.live_bytes -= self.size


_storages: weakref.WeakValueDictionary[int, _Storage] = weakref.WeakValueDictionary()


def _storage_of(raw: Tensor) -> _Storage | None:
    whole = raw.untyped_storage()
    place = whole.data_ptr()
    if not place:
        return None
    found = _storages.get(place)
    if found is None:
        found = _storages[place] = _Storage(whole.nbytes())
    return found


class Pretended(Tensor):
    """A tensor on the pretended device; `raw` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw, made._storage = raw, _storage_of(raw)
        return made

    def __init__(self, raw: Tensor) -> None:
        pass

    def __repr__(self) -> str:
        return f"Pretended({self.raw!r})"

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        _waits("tolist")
        return self.raw.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            twin = self.detach().clone()
            twin = torch.nn.Parameter(twin) if isinstance(self, torch.nn.Parameter) else twin
            memo[id(self)] = twin.requires_grad_(self.requires_grad)
        return memo[id(self)]

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Pretended):
            raise RefusedError("data of another device")
        torch._C.TensorBase.data.__set__(self, other)
        self.raw, self._storage = other.raw, other._storage

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class _Operation:
    """What is known of an operation by its schema."""

    def __init__(self, func: Any) -> None:
        returns, arguments = func._schema.returns, func._schema.arguments
        self.full = func._schema.name.removeprefix("aten::") + "." + func._overloadname
        self.name = self.full.partition(".")[0]
        self.view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self.written = [arguments.index(a) if not a.kwarg_only else a.name for a in written]
        self.returns_written = bool(written) and len(returns) == len(written)
        self.kernels = 0 if self.view or self.name in FREE else KERNELS.get(self.full, 1)
        self.waits = self.name in WAITING or self.full in WAITING
        self.copies = self.name in ("copy_", "_to_copy", "_copy_from")

    def results_of(self, args: Any, kwargs: Any) -> list[Any]:
        return [args[at] if isinstance(at, int) else kwargs[at] for at in self.written]


_operation = functools.cache(_Operation)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    operation = _operation(func)
    ours, hosts = _tensors([*args, *kwargs.values()])
    device = kwargs.get("device")
    here = bool(ours) if device is None else torch.device(device).type == NAME
    if operation.copies:
        _copied(operation, args, kwargs, here)
    else:
        _check(operation, args, kwargs, ours, hosts)
        if operation.kernels and (here or ours):
            _launched(operation.full, operation.kernels)
            if _device.watching and _varies(operation, args, kwargs):
                for seen in _device.watching:
                    seen.varying[f"{operation.name} at {_place()}"] += 1
    if device is not None and here:
        kwargs = {**kwargs, "device": CPU}
    if func is aten._copy_from.default:
        _raw(args[1]).copy_(_raw(args[0]))
        return args[1]
    out = func(*_raw(args), **_raw(kwargs))
    if operation.returns_written:
        results = operation.results_of(args, kwargs)
        return results[0] if len(results) == 1 else tuple(results)
    return _on_device(out) if here else out


def _check(operation: _Operation, args: Any, kwargs: Any, ours: list[Any], hosts: list[Tensor]) -> None:
    """Refuse tensors of two devices, and count a wait."""
    if operation.name in TAKES_HOST_INDICES and ours:
        indices = [x for x in args[1] if isinstance(x, Tensor)]
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
            _waits(f"{operation.name} by booleans")
        if any(not isinstance(x, Pretended) for x in indices):
            _transfers("up")
        hosts = [x for x in hosts if not any(x is index for index in indices)]
    elif operation.waits and ours:
        _waits(operation.full)
    if ours and hosts:
        refused = any(x.dim() for x in hosts) or operation.name in NEEDS_ONE_DEVICE
        written = [x for x in operation.results_of(args, kwargs) if isinstance(x, Tensor)]
        if refused or any(not isinstance(x, Pretended) for x in written):
            shapes = [list(x.shape) for x in (*ours, *hosts)]
            raise RefusedError(
                f"Expected all tensors to be on the same device, but {operation.full} at {_place()} got {shapes}"
            )


def _varies(operation: _Operation, args: Any, kwargs: Any) -> bool:
    if operation.name in TAKES_HOST_INDICES - {"index"}:
        return bool(kwargs.get("accumulate", len(args) > 3 and args[3]))
    if operation.name in VARYING_UNLESS_ASKED:
        return not torch.are_deterministic_algorithms_enabled()
    return operation.name in VARYING or (operation.name == "cumsum" and args[0].is_floating_point())


def _copied(operation: _Operation, args: Any, kwargs: Any, here: bool) -> None:
    """Count a copy: a kernel on the device, a transfer from or to it."""
    if operation.name == "copy_":
        target, source = args[0], args[1]
        to, come = isinstance(target, Pretended), isinstance(source, Pretended)
    elif operation.name == "_copy_from":
        source, to, come = args[0], isinstance(args[1], Pretended), isinstance(args[0], Pretended)
    else:
        source, to, come = args[0], here, isinstance(args[0], Pretended)
    if not source.numel():
        return
    if to and come:
        _launched(operation.full, 1)
    elif to or come:
        _transfers("up" if to else "down")
        if come and not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)):
            _waits("copy to the host")


def _launched(name: str, count: int) -> None:
    for seen in _device.watching:
        seen.operations[name] += count


def _waits(kind: str) -> None:
    if _device.capturing:
        raise RefusedError(f"{kind} waits for the device, at {_place()}: a CUDA graph cannot hold it")
    for seen in _device.watching:
        seen.waits[f"{kind} at {_place()}"] += 1


def _transfers(direction: str) -> None:
    if _device.capturing:
        raise RefusedError(f"a copy {direction} at {_place()}: a CUDA graph cannot hold it")
    for seen in _device.watching:
        seen.copies[f"{direction} at {_place()}"] += 1


def _place() -> str:
    """Return the line of oncurve that is at work."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("oncurve."):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_globals['__name__']}:{frame.f_lineno}"


def _raw(x: Any) -> Any:
    if isinstance(x, Pretended):
        return x.raw
    if isinstance(x, (list, tuple)):
        return [_raw(y) for y in x] if isinstance(x, list) else tuple(_raw(y) for y in x)
    if isinstance(x, dict):
        return {key: _raw(value) for key, value in x.items()}
    return x


def _on_device(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x if isinstance(x, Pretended) else Pretended(x)
    if isinstance(x, (list, tuple)):
        return type(x)(map(_on_device, x))
    return x


def _tensors(given: list[Any]) -> tuple[list[Any], list[Tensor]]:
    ours: list[Any] = []
    hosts: list[Tensor] = []
    for x in given:
        if isinstance(x, Pretended):
            ours.append(x)
        elif isinstance(x, Tensor):
            hosts.append(x)
        elif isinstance(x, (list, tuple)):
            inner = _tensors(list(x))
            ours += inner[0]
            hosts += inner[1]
    return ours, hosts


class _Module:
    """`torch.pretended`: to the rest of torch there is no such device, so that other tests of the process see none."""

    def is_available(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


_libraries: list[Any] = []


def device() -> torch.device:
    """Return the device, known to this process from the first call on."""
    if not _libraries:
        torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
        library = torch.library.Library("aten", "IMPL")
        for full in torch._C._dispatch_get_all_op_names():
            if full.startswith("aten::") and (operation := _factory(full)) is not None:
                with contextlib.suppress(RuntimeError):  # a few have a kernel for every device
                    library.impl(full[6:], functools.partial(_called, operation), "PrivateUse1")
        library.impl("_copy_from", functools.partial(_called, aten._copy_from.default), "PrivateUse1")
        _libraries.append(library)
    return torch.device(NAME, 0)


def _called(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return _run(operation, args, kwargs)


def _factory(full: str) -> Any:
    """Return an operation that makes a tensor of no other; None: it is another, or made of others."""
    name, _, overload = full[6:].partition(".")
    try:
        operation = getattr(getattr(aten, name), overload or "default")
    except (AttributeError, RuntimeError):
        return None
    schema = operation._schema
    takes = any(a.name == "device" for a in schema.arguments)
    takes = takes and not any("Tensor" in str(a.type) for a in schema.arguments)
    gives = len(schema.returns) == 1 and "Tensor" in str(schema.returns[0].type)
    made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
    return operation if takes and gives and not made_of_others else None
