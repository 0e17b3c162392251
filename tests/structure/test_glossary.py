"""The glossary of `types.py` and that of CONTRIBUTING.md are one."""

import re
from pathlib import Path

from oncurve import types

ROOT = Path(__file__).parents[2]


def test_both_glossaries_say_the_same() -> None:
    _, _, rest = types.__doc__.partition("has the same one):\n\n")
    found: dict[str, str] = {}
    for line in rest.partition("\n\n")[0].splitlines():
        word, _, meaning = line.strip().partition("  ")
        if line.startswith(" " * 8):  # the line before goes on
            last = next(reversed(found))
            found[last] += " " + line.strip()
        else:
            found[word] = meaning.strip()
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Words")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE))
    rows.pop("word")
    assert found == rows
    assert len(found) > 15
