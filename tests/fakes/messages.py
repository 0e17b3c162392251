"""What a call is refused with."""

from collections.abc import Callable

import pytest

Kind = type[Exception] | tuple[type[Exception], ...]


def message_of(kind: Kind, call: Callable[..., object], /, *args: object, **keywords: object) -> str:
    """Return what the error of that kind says that the call raises."""
    with pytest.raises(kind) as caught:
        call(*args, **keywords)
    return str(caught.value)
