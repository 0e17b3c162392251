"""The front end: ES modules and style sheets of this package, joined into one script and one sheet without a build."""

import base64
import hashlib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("pages")

TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
VENDORED: dict[str, str] = TABLES["vendored"]
OWN: list[str] = TABLES["own"]

POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; img-src data:; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)

_BEGIN = r"(?:^|(?<=[;}]))"  # of a statement, in minified files, too
_IMPORT = re.compile(_BEGIN + r"""import\s*(\{[^}]*\}|[\w$]+)\s*from\s*["']([^"']+)["'];?""", re.M)
_NAMED = re.compile(_BEGIN + r"""export\s*\{([^}]*)\}(?:\s*from\s*["']([^"']+)["'])?;?""", re.M)
_DEFAULT = re.compile(_BEGIN + r"export default ", re.M)
_DECLARED = re.compile(r"^export (?=(?:async )?(?:const|let|function|class) ([\w$]+))", re.M)
_AS = re.compile(r"\s+as\s+")


@cache
def bundle() -> str:
    """Return all modules as one classic script, which works from a file, where browsers load no modules."""
    parts = ["'use strict';const $modules={};"]
    for name, file in {**VENDORED, **{f"./{name}.mjs": f"{name}.mjs" for name in OWN}}.items():
        source = (FOLDER / ("vendor" if name in VENDORED else "") / file).read_text(encoding="utf-8")
        if name in TABLES["global"]:
            source += f"\n$out.default={TABLES['global'][name]};"
        else:
            source = _as_function(source, name not in VENDORED)
        parts.append(f"$modules[{name!r}]=(()=>{{const $out={{}};\n{source}\nreturn $out}})();")
    return "\n".join(parts)


def _as_function(source: str, own: bool) -> str:
    """Return a module's source as the body of a function that fills `$out` with what it exports."""
    source = re.sub(r"^//# sourceMappingURL=.*$", "", source, flags=re.M)
    declared: list[str] = _DECLARED.findall(source) if own else []
    source = _DECLARED.sub("", source) if own else source
    source = _DEFAULT.sub("$out.default=", source)
    source = _IMPORT.sub(lambda found: _taken(found[1], found[2]), source)
    source = _NAMED.sub(lambda found: _given(found[1], found[2]), source)
    return source + "".join(f"\n$out.{name}={name};" for name in declared)


def _taken(names: str, module: str) -> str:
    if not names.startswith("{"):
        return f"const {names}=$modules[{module!r}].default;"
    return f"const {_AS.sub(':', names)}=$modules[{module!r}];"


def _given(names: str, module: str | None) -> str:
    pairs = [(_AS.split(each.strip()) * 2)[:2] for each in names.split(",") if each.strip()]
    home = "" if module is None else f"$modules[{module!r}]."
    return "".join(f"$out.{outer}={home}{inner};" for inner, outer in pairs)


@cache
def sheet() -> str:
    """Return the style of the pages."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in ("vendor/uplot.css", "view.css"))


def page(embedded: str | None = None) -> str:
    """Return the page of a server; with `embedded` (elements that hold data) one that needs no server."""
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    if embedded is None:
        return html
    script, style = bundle(), sheet()
    policy = POLICY.format(script=_hash(script), style=_hash(style), connect="'none'")
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    html = html.replace('<link rel="stylesheet" href="view.css">', head)
    return html.replace('<script defer src="view.js"></script>', f"{embedded}\n<script>{script}</script>")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
