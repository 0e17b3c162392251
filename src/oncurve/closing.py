"""Objects that hold processes or files until they are closed: `with` closes them at the end of its block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager whose end is `close()`, whatever ended its block."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Calling it a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
