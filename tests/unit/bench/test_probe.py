import threading
import time
from types import SimpleNamespace

import torch
from bench.systems.probe import Probe
from torch import nn


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding


def test_phases_leave_out_what_is_inside_them() -> None:
    probe = Probe()
    holder = SimpleNamespace(inner=lambda: time.sleep(0.05), outer=lambda: (time.sleep(0.02), holder.inner()))
    probe.timed(holder, "inner", "prefill")
    probe.timed(holder, "outer", "decode")
    holder.outer()
    phases = probe.report(1.0, []).phases
    assert phases["prefill"] >= 0.05
    assert 0.02 <= phases["decode"] < 0.05
    assert probe.report(1.0, []).phases == {}


def test_another_threads_time_is_not_the_steps() -> None:
    probe = Probe()
    holder = SimpleNamespace(score=lambda: time.sleep(0.01))
    probe.timed(holder, "score", "reward")
    thread = threading.Thread(target=holder.score)
    thread.start()
    thread.join()
    assert "reward" not in probe.report(1.0, []).phases


def test_generate_is_prefill_until_the_networks_second_call() -> None:
    probe, network = Probe(), Network()

    def generate() -> None:
        network.embedding(torch.zeros(2, 3, dtype=torch.int64))
        for _ in range(4):
            time.sleep(0.01)
            network.embedding(torch.zeros(2, 1, dtype=torch.int64))

    holder = SimpleNamespace(generate=generate)
    probe.timed_generate(holder)
    probe.count_tokens(network)
    holder.generate()
    report = probe.report(1.0, [])
    assert report.executed == {"prefill": 6, "decode": 8}
    assert report.decode_steps == 4
    assert report.phases["prefill"] >= 0.01
    assert report.phases["decode"] >= 0.03
