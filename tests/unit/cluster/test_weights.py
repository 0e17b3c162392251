"""Weights on their way to workers: shared memory, buckets, and the digest that finds a flipped bit."""

import gc
import os

import cloudpickle
import pytest
import torch

from fakes.tiny_policy import tiny_model
from oncurve.cluster.workers.weights import digest_of
from oncurve.models import changing_tensors
from oncurve.processes.shared import SharedBytes


def test_a_flipped_bit_changes_the_digest_wherever_it_is() -> None:
    model = tiny_model(torch.bfloat16)
    found = {digest_of(model)}
    tensors = list(changing_tensors(model).values())
    flips = 0
    for tensor in tensors:
        data = tensor.view(-1).view(torch.uint8)
        for place in range(0, data.numel(), 13):
            data[place] ^= 1 << (place % 8)
            found.add(digest_of(model))
            data[place] ^= 1 << (place % 8)
            flips += 1
    assert flips > 10
    assert len(found) == 1 + flips
    assert digest_of(model) in found


def test_another_process_reads_the_same_memory_as_long_as_the_handle_is_kept() -> None:
    def seen(message: bytes) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, str([bytes(piece) for piece in cloudpickle.loads(message)]).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        return text

    handle = SharedBytes(memoryview(piece) for piece in (b"some", b"weights"))
    descriptor, message = handle.descriptor, cloudpickle.dumps(handle)
    mine = cloudpickle.loads(message)
    assert seen(message) == str([b"some", b"weights"])
    assert mine[0].readonly
    del handle
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert seen(message) == "[]"
    other = os.open(os.devnull, os.O_RDONLY)  # the number may be another file's
    assert seen(message) == "[]"
    os.close(other)
    assert bytes(mine[1]) == b"weights"  # whoever has it, has it
