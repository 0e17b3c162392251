"""A module of the user's is there on a machine without its file as on the one that has it."""

import inspect
import sys
from pathlib import Path

from oncurve.processes.fleets.serving import _import_source

SOURCE = """
import inspect

def mine():
    return 1

SEEN = inspect.getsource(mine)  # as compilers of functions do while a module is imported
"""


def test_code_that_was_sent_can_read_its_own_source(tmp_path: Path) -> None:
    _import_source("sent_code_of_a_test", str(tmp_path / "none.py"), SOURCE)
    module = sys.modules.pop("sent_code_of_a_test")
    assert inspect.getsource(module.mine) == module.SEEN
    assert module.mine() == 1
