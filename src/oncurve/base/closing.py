"""Objects that hold processes or files until they are closed: `with` closes them at the end of its block."""

import subprocess
import threading
from abc import ABC, abstractmethod
from typing import Any, Self


class Closing(ABC):
    """A context manager whose end is `close()`, whatever ended its block."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Calling it a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def reap(child: subprocess.Popen[Any], seconds: float) -> int | None:
    """Return the exit code of a child that is ending; None where it has not ended within so many `seconds`.

    Then a thread waits for it. A killed process ends when the kernel comes to it, which may take long on a busy
    machine, and until it is waited for it stays in the table of processes.
    """
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        threading.Thread(target=child.wait, daemon=True).start()
        return None
