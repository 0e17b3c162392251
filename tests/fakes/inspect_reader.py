"""`python inspect_reader.py FOLDER`: the logs in a folder as Inspect's own library reads and serves them, as JSON.

It runs in an environment that has inspect_ai, and nothing of oncurve.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_sample

PATIENCE = 120.0


def read(folder: str) -> list[dict[str, object]]:
    """Each log: its head alone, the whole, and one sample alone."""
    found = []
    for info in list_eval_logs(folder, descending=False):
        head, log = read_eval_log(info, header_only=True), read_eval_log(info)
        assert head.samples is None
        assert head.results == log.results
        last = log.samples[-1]
        assert read_eval_log_sample(info, last.id, last.epoch) == last
        found.append(
            {
                "task": info.task,
                "step": head.eval.task_args["step"],
                "status": head.status,
                "samples": [
                    {
                        "id": sample.id,
                        "epoch": sample.epoch,
                        "input": sample.input,
                        "text": sample.output.completion,
                        "stop": sample.output.stop_reason,
                        "messages": [message.role for message in sample.messages],
                        "scores": {name: score.value for name, score in sample.scores.items()},
                        "advantage": sample.metadata.get("advantage"),
                    }
                    for sample in log.samples
                ],
            }
        )
    return found


def served(folder: str) -> list[str]:
    """The logs that `inspect view` lists; it also serves its page and each log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["view", "start", "--log-dir", folder, "--host", "127.0.0.1", "--port", str(port)]
    command = [str(Path(sys.executable).with_name("inspect")), *words]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                assert b"Inspect View" in get(port, "/")
                break
            except urllib.error.URLError:
                assert time.monotonic() < until
                assert server.poll() is None
                time.sleep(0.2)
        names = [Path(each["name"]).name for each in json.loads(get(port, "/api/logs"))["files"]]
        for name in names:
            assert json.loads(get(port, f"/api/logs/{folder}/{name}"))["samples"]
        return sorted(names)
    finally:
        server.terminate()
        server.wait()


def get(port: int, path: str) -> bytes:
    """What the server answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        return answer.read()


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"logs": read(sys.argv[1]), "served": served(sys.argv[1])}) + "\n")
