"""Hooks of `mkdocs build`: reference pages made from the code, pages of source files, equations.

* index.md is the README. configuration.md, metrics.md, coming-from.md and api.md are made here; docs/ has short pages
  in place of the first three, for readers of the repository.
* llms.txt names the pages.
* A link out of docs/, such as `../src/oncurve/kl.py`, leads to a page with that file.
* Blocks of LaTeX (```math) become MathML, which browsers draw without a script.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import coming_from_page  # noqa: E402
import configuration_page  # noqa: E402
import metrics_page  # noqa: E402

LINK = re.compile(r"(\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
MATH = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and a page for each file of the repository that a page links to."""
    made = {
        "index.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "configuration.md": configuration_page.page(),
        "metrics.md": metrics_page.page(),
        "coming-from.md": coming_from_page.page(),
        "api.md": names(),
        "decisions/index.md": decisions(),
    }
    for name, text in made.items():
        short = files.get_file_from_path(name)
        if short is not None:
            files.remove(short)
        files.append(File.generated(config, name, content=text))
    unread = [*files.documentation_pages()]
    while unread:
        page = unread.pop()
        for _, target, _ in LINK.findall(page.content_string):
            name = site_path(page.src_uri, target)
            if name is not None and name.startswith("source/") and files.get_file_from_path(name) is None:
                unread.append(File.generated(config, name, content=source(name[7:-3])))
                files.append(unread[-1])
    files.append(File.generated(config, "llms.txt", content=overview(files)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to files of the repository to the pages of those files."""
    uri = page.file.src_uri

    def inside(match: re.Match[str]) -> str:
        name = site_path(uri, match[2])
        return match[0] if name is None else f"{match[1]}{posixpath.relpath(name, posixpath.dirname(uri))}{match[3]}"

    return LINK.sub(inside, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Write equations as MathML."""
    return MATH.sub(
        lambda found: f'<div class="math">{convert(html.unescape(found[1]), display="block")}</div>', content
    )


def site_path(page: str, target: str) -> str | None:
    """Return the page or picture of the site that `target`, a link on `page` as the repository has it, leads to.

    None where it leads to another host, or nowhere.
    """
    home = page[7:-3] if page.startswith("source/") else "README.md" if page == "index.md" else f"docs/{page}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    if "://" in target or path.startswith(".."):
        return None
    if path.startswith("docs/"):
        return "decisions/index.md" if path == "docs/decisions" else path[5:]
    return "index.md" if path == "README.md" else f"source/{path}.md" if (ROOT / path).exists() else None


def source(path: str) -> str:
    """Return the page of a file, or of a folder with the names in it."""
    title = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n"
    found = ROOT / path
    if found.suffix == ".md":
        return title + found.read_text(encoding="utf-8")
    if found.is_dir():
        return title + "\n".join(f"* `{each.name}`" for each in sorted(found.iterdir()) if each.name[0] not in "._")
    return f"{title}````{found.suffix[1:] or 'text'}\n{found.read_text(encoding='utf-8')}\n````\n"


def overview(files: Files) -> str:
    """Return llms.txt: what the project is, and a line per page, for programs that read the site."""
    lines = ["# oncurve", "", "> Train language models with GRPO, with maths that is checked. The commands explain"]
    lines += ["> themselves: `oncurve --help`, `oncurve config explain SECTION.KEY`.", "", "## Pages", ""]
    for page in files.documentation_pages():
        if not page.src_uri.startswith(("source/", "decisions/")):
            title = next(line for line in page.content_string.splitlines() if line.startswith("# "))
            lines.append(f"- [{title[2:]}]({page.url})")
    return "\n".join(lines) + "\n"


def decisions() -> str:
    """Return the list of the pages that say why something is as it is."""
    lines = ["# Decisions", "", "Why some things are as they are, a page each.", ""]
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"* [{title}]({page.name})")
    return "\n".join(lines) + "\n"


def names() -> str:
    """Return the page of the public Python names."""
    import oncurve

    public = sorted(name for name in oncurve.__all__ if not name.startswith("_"))
    return "# Python names\n\n" + "\n".join(f"::: oncurve.{name}\n" for name in public)
