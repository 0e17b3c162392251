"""`oncurve init`: a shipped recipe as a file of the user's own, with the code that it names."""

import re
from pathlib import Path

from oncurve.base.errors import ConfigError, command, shown, suggest
from oncurve.base.paths import RECIPES, SUFFIXES, shipped, usable_path
from oncurve.config.layers import CODE_PATH

_QUOTED = re.compile(r'"([^"\n]+)"')


def starters() -> dict[str, Path]:
    """Return the recipes that `init` writes, by name."""
    return {name: file for name, file in shipped(RECIPES).items() if "/" not in name}


def write_recipe(name: str, out: Path | None = None) -> list[Path]:
    """Write the shipped recipe `name` to `out` (None: NAME.toml), and next to it the code and rows that it names.

    Paths in it are made to fit: code and rows are copied, a shipped recipe that it extends is named, a model of the
    package is named by its folder. Returns the files, the recipe first.
    Raises ConfigError: there is no such recipe, or a file is there already, of which none is touched.
    """
    known = starters()
    if name not in known:
        near = suggest(name, known) or ";"
        raise ConfigError(f"there is no recipe {shown(name)} to begin with{near} there are: {', '.join(known)}")
    source, file = known[name], usable_path(out or f"{name}.toml", "--out")
    if file.suffix not in SUFFIXES[:1]:
        raise ConfigError(f"--out {file}: a recipe's name ends in .toml")
    texts = {file: _adapted(source, name, file)}
    lines = source.read_text(encoding="utf-8").splitlines()
    for found in _QUOTED.finditer("\n".join(line for line in lines if not line.startswith("#"))):
        code = CODE_PATH.fullmatch(found[1])
        named = found[1] if code is None else code[1]
        of_the_package = named.endswith(".jsonl") and (source.parent / named).is_file()  # others are the user's
        if code is not None or of_the_package:
            texts[file.parent / named] = (source.parent / named).read_text(encoding="utf-8")
    taken = [str(path) for path in texts if path.exists() or path.is_symlink()]
    if taken:
        raise ConfigError(f"{', '.join(taken)}: there already, and nothing is overwritten; choose another name: --out")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return list(texts)


def _adapted(source: Path, name: str, file: Path) -> str:
    """Return the text of a shipped recipe as that of `file`."""

    def fitting(found: re.Match[str]) -> str:
        path = source.parent / found[1]
        if path.suffix in SUFFIXES and path.is_file():
            return f'"{path.stem}"'
        return f'"{path.resolve()}"' if found[1].startswith("..") and path.exists() else found[0]

    lines = []
    for line in source.read_text(encoding="utf-8").splitlines(keepends=True):
        comment = line.startswith("#")
        run = f"{command('train', name)} ", f"{command('train', file)} "
        lines.append(line.replace(*run) if comment else _QUOTED.sub(fitting, line))
    return "".join(lines)
