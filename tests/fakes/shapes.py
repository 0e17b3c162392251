"""What checks the shapes in the signatures of the pure rooms while the tests run (see `conftest.py`)."""

from collections.abc import Callable
from typing import Any

from beartype import beartype

ROOMS = ("types", "ops", "kl", "batching", "advantages", "losses")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which refuses tensors of other shapes and dtypes than it states; its other types are mypy's."""
    hints = function.__annotations__
    function.__annotations__ = {name: hint if "[Tensor, " in str(hint) else Any for name, hint in hints.items()}
    return beartype(function)
