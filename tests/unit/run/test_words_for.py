"""Every option that a command does not have is answered, whatever other options the command has."""

import pytest

from oncurve.run import words_for
from oncurve.run.arguments import ARGUMENT_OF, OTHER_NAMES

NAMES = sorted({*OTHER_NAMES, *OTHER_NAMES.values(), *ARGUMENT_OF.values(), "out", "outt", "lr", "no_such_thing"})


@pytest.mark.parametrize("options", [[], ["--data"], [f"--{name}" for name in NAMES]], ids=["none", "one", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_an_option_of_any_name_has_words_or_none(name: str, options: list[str]) -> None:
    words, note = words_for(f"--{name.replace('_', '-')}", "1", options)
    assert all("=" in word or word.startswith("--") or word == "1" for word in words)
    assert isinstance(note, str)
