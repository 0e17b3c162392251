"""A Ray cluster of several nodes on this machine, in a process of its own, which does what it is told line by line.

python toy_cluster.py 0 0 2        three nodes with a processor each, and so many GPUs, which Ray only counts; prints
                                   the address, then a line per order
add                                another node
remove N                           kill -9 the raylet of node N
"""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SECONDS = 90.0


def main() -> None:
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    gpus = [int(word) for word in sys.argv[1:]]
    cluster = Cluster(initialize_head=True, head_node_args={**small, "num_gpus": gpus[0]})
    small.pop("include_dashboard")
    nodes = [cluster.head_node]
    nodes += [cluster.add_node(**small, num_gpus=count) for count in gpus[1:]]
    say(cluster.address)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                nodes.append(cluster.add_node(**small))
            case ["remove", number]:
                nodes[int(number)].kill_raylet()
        say("done")
    cluster.shutdown()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Toy:
    """The cluster, from outside."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *map(str, gpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.line()

    def line(self) -> str:
        """The next line that it prints that is not one of Ray's."""
        found: list[str] = []

        def read() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.startswith("done") or line.strip().replace(".", "").replace(":", "").isdigit():
                    found.append(line.strip())
                    return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert found, "the toy cluster does not answer"
        return found[0]

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        assert self.line() == "done"

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


@contextmanager
def toy_cluster(count: int, gpus: int = 0) -> Iterator[Toy]:
    """A cluster of so many nodes with so many GPUs each."""
    toy = Toy([gpus] * count)
    try:
        yield toy
    finally:
        toy.close()


if __name__ == "__main__":
    main()
