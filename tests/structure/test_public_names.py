"""What `import oncurve` offers, and what it costs."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import oncurve
from fakes.sources import imported, modules, tree_of

SOURCE = Path(oncurve.__file__).parent
PURE = ("advantages", "losses", "ops.py", "kl.py", "randomness.py", "batching.py")  # maths on tensors, and no more
FORBIDDEN_IN_PURE = ("trainer", "run", "learner", "rollout", "rewards", "data", "report", "display", "models", "tasks")
LIGHT = [f"import oncurve{module}" for module in ("", ".cli", ".base.errors", ".rewards", ".run", ".compat.trl")]
HEAVY = {"torch", "transformers", "trl"}


def test_every_public_name_is_there_and_has_words() -> None:
    found = {name: getattr(oncurve, name) for name in oncurve.__all__}
    assert [name for name, value in found.items() if not (value.__doc__ or "").strip()] == []


def test_dir_lists_the_public_names_and_an_unknown_one_is_an_attribute_error() -> None:
    assert dir(oncurve) == sorted(oncurve.__all__)
    with pytest.raises(AttributeError, match="no attribute 'GPRO'"):
        _ = oncurve.GPRO


def test_every_name_that_a_module_offers_exists() -> None:
    names = [name for name in modules(SOURCE) if not name.endswith("__main__") and ".triton_" not in name]
    offered = {(name, given) for name in names for given in getattr(import_module(name), "__all__", ())}
    assert [(name, given) for name, given in offered if not hasattr(import_module(name), given)] == []


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_know_nothing_of_the_loop(room: str) -> None:
    place = SOURCE / room
    for path in [place] if place.is_file() else sorted(place.glob("*.py")):
        for module in imported(tree_of(path.read_text(encoding="utf-8"))):
            assert module.split(".")[1:2] == [] or module.split(".")[1] not in FORBIDDEN_IN_PURE, (
                f"{path.name}: {module}"
            )


def test_what_is_light_imports_no_torch_and_no_package_that_does() -> None:
    program = "import sys\n" + "".join(f"{line}\nassert not {HEAVY} & sys.modules.keys(), {line!r}\n" for line in LIGHT)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_refused_before_torch_is_imported() -> None:
    commands = [f"{name} nowhere.toml" for name in ("train", "sft", "plan", "config show", "config explain")]
    commands += ["resume nowhere", "export nowhere", "train nosuchpreset", "data check nosuchpreset"]
    program = "import contextlib, sys\nfrom oncurve.cli import main\nfor words in " + repr(commands) + ":\n"
    program += "    sys.argv = ['oncurve', *words.split()]\n    with contextlib.suppress(SystemExit):\n        main()\n"
    program += "    assert 'torch' not in sys.modules, words\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nowhere") + done.stderr.count("nosuchpreset") >= len(commands)
