"""The project's scripts as modules."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str) -> ModuleType:
    """Load `scripts/name.py`."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def site_page(name: str) -> str:
    """Return the text of a page that the site has whole, made once per process."""
    return str(script(f"site/{name}_page").page())
