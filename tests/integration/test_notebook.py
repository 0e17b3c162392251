"""A run in a real Jupyter kernel, really interrupted: the kernel lives, and the run goes on from where it was."""

import os
import queue
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.waiting import until

jupyter_client = pytest.importorskip("jupyter_client", reason="needs the dev extra's ipykernel")
PATIENCE_SECONDS = 240
EXAMPLES = Path(__file__).parents[2] / "examples"

BEGIN = """
import os, time, oncurve
os.environ["OMP_NUM_THREADS"] = "1"
def reward(completion: str) -> float:
    if os.path.exists("slow") and os.path.isdir("two"):  # not where it is tried, before there is a folder
        open("sleeping", "w").close()
        time.sleep(120)
    return float(len(completion) % 7)
"""
TRAIN = """
run = oncurve.train("recipe.toml", reward=reward, out={out!r}, on_step={step})
print("stopped by", run.stopped_by)
"""
RESUME = """
with oncurve.resume({out!r}, reward=reward) as again:
    print("steps", [int(line["step"]) for line in again.metrics])
"""


class Notebook:
    """A kernel and its client."""

    def __init__(self, folder: Path) -> None:
        self.outputs: list[tuple[str, str]] = []
        self.traceback = ""
        self.manager = jupyter_client.KernelManager()
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_SECONDS)

    def begin(self, code: str) -> str:
        """Execute a cell; the id of the request."""
        return str(self.client.execute(code))

    def end(self, request: str) -> tuple[str, str]:
        """Wait for a cell: everything it printed, and the name of what it raised ("" for nothing)."""
        said, raised, deadline = "", "", time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert self.manager.is_alive()
            try:
                message: dict[str, Any] = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                said += content["text"]
            elif message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
                said += content["data"].get("text/plain", "") + "\n"
                self.outputs.append((message["msg_type"], content["data"].get("text/html", "")))
            elif message["msg_type"] == "error":
                raised = content["ename"]
                self.traceback = "\n".join(content["traceback"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return said, raised
        raise TimeoutError(said)

    def run(self, code: str) -> tuple[str, str]:
        return self.end(self.begin(code))


@pytest.fixture(scope="module")
def notebook(laid_out: Path) -> Iterator[Notebook]:
    made = Notebook(laid_out)
    assert made.run(BEGIN)[1] == ""
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_one_interrupt_ends_the_run_and_another_cell_goes_on_with_it(notebook: Notebook, laid_out: Path) -> None:
    step = 'lambda result: (open("stepped", "w").close(), time.sleep(3))'
    cell = notebook.begin(TRAIN.format(out="one", step=step))
    until((laid_out / "stepped").exists)
    notebook.manager.interrupt_kernel()
    said, raised = notebook.end(cell)
    assert (raised, "stopped by SIGINT" in said) == ("", True)
    assert "oncurve.resume('one', reward=reward)" in said
    said, raised = notebook.run(RESUME.format(out="one"))  # in the same kernel, with the first run still there
    assert raised == "", said
    assert "steps [1, 2, 3]" in said


@pytest.mark.slow
def test_a_second_interrupt_is_a_keyboard_interrupt_and_the_kernel_lives(notebook: Notebook, laid_out: Path) -> None:
    (laid_out / "slow").touch()
    cell = notebook.begin(TRAIN.format(out="two", step=None))
    until((laid_out / "sleeping").exists)
    notebook.manager.interrupt_kernel()
    time.sleep(1)
    notebook.manager.interrupt_kernel()
    said, raised = notebook.end(cell)
    assert raised == "KeyboardInterrupt", said
    first, advice = notebook.traceback.splitlines()
    assert first == "KeyboardInterrupt: the run ended at once; its checkpoints are whole"
    assert "oncurve.resume('two', reward=reward)" in advice  # below the error
    assert notebook.run("print(1 + 1)") == ("2\n", "")
    (laid_out / "slow").unlink()
    said, raised = notebook.run(RESUME.format(out="two"))
    assert raised == "", said
    assert "steps [1, 2, 3]" in said


@pytest.mark.slow
def test_progress_is_one_output_and_an_error_is_one_message(notebook: Notebook) -> None:
    notebook.outputs.clear()
    said, raised = notebook.run(TRAIN.format(out="three", step="lambda result: time.sleep(0.3)"))
    assert raised == "", said
    assert "IProgress" not in said
    kinds = [kind for kind, _ in notebook.outputs]
    assert kinds[0] == "display_data"
    assert len(kinds) >= 4
    assert set(kinds[1:]) == {"update_display_data"}
    assert "step 3/3" in notebook.outputs[-1][1]
    assert "<svg" in notebook.outputs[-1][1]
    notebook.outputs.clear()
    assert notebook.run("run") == ("TrainedRun(steps=3, directory='three', stopped_by=None)\n", "")
    assert "three · 3 steps" in notebook.outputs[0][1]
    assert "w1" not in notebook.outputs[0][1]
    said, raised = notebook.run("oncurve.train('recipe.toml', reward=reward, out='three')")
    assert raised == "RunDirectoryError"
    assert notebook.traceback.startswith("RunDirectoryError: ")
    assert "\n" not in notebook.traceback
    assert ".py" not in notebook.traceback


def executed(example: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: str) -> list[Any]:
    """The outputs of each cell of code of a notebook that is executed in `folder`, with these changes."""
    nbclient = pytest.importorskip("nbclient", reason="needs the dev extra's nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(example, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # it is shipped without outputs
    for cell in notebook.cells:
        for old, new in changes.items():
            cell.source = re.sub(rf"\b{old}\b(\W+)\d+", rf"{old}\g<1>{new}", cell.source)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # of `!oncurve`
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=PATIENCE_SECONDS, kernel_name="python3", resources=resources).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.ipynb") if path.stem != "first_run"))
def test_an_example_runs_from_first_to_last_cell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = executed(EXAMPLES / f"{name}.ipynb", tmp_path, monkeypatch)
    assert not any(output.get("output_type") == "error" for outputs in shown for output in outputs)
    assert sum(bool(outputs) for outputs in shown) >= 3


@pytest.mark.slow
def test_the_first_example_shows_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = executed(EXAMPLES / "first_run.ipynb", tmp_path, monkeypatch, steps="4", every="2")
    pages = [outputs[-1]["data"].get("text/html", "") for outputs in shown[3:] if outputs]
    assert "first_run · 4 steps" in pages[0]
    assert [page.startswith("<iframe") for page in pages[1:4]] == [True] * 3
    assert "reward/mean" in pages[4]
    assert "first_run · 4 steps" in pages[5]
    errors = [output for outputs in shown for output in outputs if output.get("name") == "stderr"]
    assert errors == []
