"""Print the lines of code of each part of oncurve next to its budget; exit with 1 where a part is over it.

A line counts if a token touches it that is neither a comment nor part of a docstring. The budgets stand in
`scripts/code_budgets.toml`: the rooms of each part (folders and modules of `src/oncurve`), and its most lines. Every
room belongs to one part.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGETS = ROOT / "scripts" / "code_budgets.toml"
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def code_lines(source: str) -> int:
    """Count the lines of `source` without docstrings, comments and blank lines."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in BLANK
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sizes(root: Path) -> Counter[str]:
    """Count the lines of code of each room: a folder or module of `src/oncurve`, and `tests`."""
    found: Counter[str] = Counter()
    for path in (root / "src" / "oncurve").rglob("*.py"):
        found[path.relative_to(root / "src" / "oncurve").parts[0].removesuffix(".py")] += code_lines(
            path.read_text("utf-8")
        )
    found["tests"] = sum(code_lines(path.read_text("utf-8")) for path in (root / "tests").rglob("*.py"))
    return found


def main() -> int:
    """Print the table, and return 1 where a part is over its budget or a room belongs to none."""
    parts = tomllib.loads(BUDGETS.read_text("utf-8"))
    counted = sizes(ROOT)
    owned = {room for part in parts.values() for room in part["rooms"]}
    wrong = [f"{room} belongs to no part of {BUDGETS.name}" for room in sorted(counted.keys() - owned)]
    wrong += [f"{room} of {BUDGETS.name} does not exist" for room in sorted(owned - counted.keys())]
    for name, part in parts.items():
        size, budget = sum(counted[room] for room in part["rooms"]), part["budget"]
        print(f"{name:40} {size:7,} of {budget:7,}")
        if size > budget:
            wrong.append(f"{name} is over its budget by {size - budget} lines: delete as many, or write a decision")
    print(f"{'src/oncurve':40} {counted.total() - counted['tests']:7,}")
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
