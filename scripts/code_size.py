"""Print the code lines of each room of `src/oncurve` and of the tests, without docstrings, comments and blank lines.

    python scripts/code_size.py

A line counts if a token of code touches it. A statement that is a plain string, such as a docstring, is no code.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "oncurve"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Return the number of lines of `source` that a token of code touches."""
    strings = {
        (node.lineno, node.end_lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    said = {line for first, last in strings for line in range(first, (last or first) + 1)}
    found = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(found - said)


def lines_in(folder: Path) -> Counter[str]:
    """Return the code lines of `folder` by the first part of each file's path in it."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        found[path.relative_to(folder).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print the table: rooms and modules from large to small, their sum, and the tests."""
    rooms = lines_in(PACKAGE)
    tests = sum(lines_in(ROOT / "tests").values())
    for name, lines in [*rooms.most_common(), ("all", rooms.total()), ("tests", tests)]:
        print(f"{name:<20} {lines:>7,}")


if __name__ == "__main__":
    main()
