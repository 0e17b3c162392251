"""What `import oncurve` offers, and what it costs."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import oncurve

SOURCE = Path(oncurve.__file__).parent
PURE = ("advantages", "losses", "ops.py", "kl.py", "randomness.py", "batching.py")  # maths on tensors, and no more
FORBIDDEN_IN_PURE = ("trainer", "run", "learner", "rollout", "rewards", "data", "report", "display", "models", "tasks")
LIGHT = [
    "import oncurve",
    "import oncurve.cli",
    "import oncurve.errors",
    "import oncurve.rewards",
    "import oncurve.run",
]


@pytest.mark.parametrize("name", oncurve.__all__)
def test_every_public_name_is_there_and_has_words(name: str) -> None:
    found = getattr(oncurve, name)
    assert found is not None
    if name != "__version__":
        assert (found.__doc__ or "").strip()


def test_dir_lists_the_public_names_and_an_unknown_one_is_an_attribute_error() -> None:
    assert dir(oncurve) == sorted(oncurve.__all__)
    with pytest.raises(AttributeError, match="no attribute 'GPRO'"):
        _ = oncurve.GPRO


def modules() -> list[str]:
    files = [path for path in SOURCE.rglob("*.py") if path.name != "__main__.py"]
    return sorted(
        ".".join(("oncurve", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in files
    )


@pytest.mark.parametrize("name", modules())
def test_every_name_that_a_module_offers_exists(name: str) -> None:
    module = import_module(name)
    for offered in getattr(module, "__all__", ()):
        assert hasattr(module, offered), offered


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_know_nothing_of_the_loop(room: str) -> None:
    place = SOURCE / room
    for path in [place] if place.is_file() else sorted(place.glob("*.py")):
        for module in imported(path):
            assert module.split(".")[1:2] == [] or module.split(".")[1] not in FORBIDDEN_IN_PURE, (
                f"{path.name}: {module}"
            )


def test_what_is_light_imports_no_torch() -> None:
    program = "import sys\n" + "".join(f"{line}\nassert 'torch' not in sys.modules, {line!r}\n" for line in LIGHT)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
