"""Texts and pages by the templates of the package, `oncurve/templates`. Nothing here imports torch."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from oncurve.base.output import visible
from oncurve.metrics import short
from oncurve.report.charts import HEIGHT, WIDTH


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("oncurve", "templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup is made of such texts
    )
    templates.globals["fmt"] = format
    templates.filters["inline"] = lambda text: " ".join(text.replace("`", "'").split())  # of Markdown
    templates.filters |= {"one_line": one_line, "figure": figure}
    templates.filters["number"] = lambda value: "none" if value is None else short(value)
    templates.filters["signed"] = lambda value: "none" if value is None else f"{value:+.2f}".replace("-", "−")
    return templates


def rendered(template: str, **values: Any) -> str:
    """Return a text by a template of `oncurve/templates`. Control characters in it are visible; HTML is escaped."""
    return _templates().get_template(template).render({"width": WIDTH, "height": HEIGHT, **values})


def figure(value: Any) -> str:
    """Return a value of a row in few characters; "-" for None."""
    return "-" if value is None else short(value) if isinstance(value, float) else visible(str(value))


def one_line(text: Any) -> str:
    """Return the first 60 characters of a text on one line."""
    return visible(" ".join(str(text).split()))[:60]
