"""`oncurve train --verl`: a run by verl's settings, in the folder and with the resumption that they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncurve.base.errors import ConfigError, command, shown
from oncurve.base.output import say
from oncurve.compat.dialect import Line, Translation, Values
from oncurve.compat.recipe import config_of
from oncurve.compat.verl.reading import VerlReading, read
from oncurve.compat.verl.reward import checker_notes
from oncurve.compat.verl.table import DIALECT
from oncurve.run import train_or_resume, train_recipe

LONGEST = 200
"""Characters of a command line that is printed."""


def train_verl(words: Sequence[str], out: Path | None = None, resume_if_there: bool = False) -> str | None:
    """Train by verl's settings; return the signal that stopped the run, or None.

    words             a YAML file, or assignments; see `read`
    out               the run's folder; None: `trainer.default_local_dir`
    resume_if_there   continue the run that is there; so does `trainer.resume_mode=auto`, verl's default

    Prints what the settings became. Raises ConfigError, before anything expensive.
    """
    reading = read(words)
    translation = DIALECT.translate(reading.said)
    config, base = config_of(translation)
    values = Values(DIALECT.table, reading.said)
    folder = out or _folder(values)
    for line in [*summary(translation, reading, values, words), f"folder  {folder}", ""]:
        say(line)
    if resume_if_there or values["trainer.resume_mode"] == "auto":
        return train_or_resume(config, base, folder)
    return train_recipe(config, base, folder)


def _folder(values: Values) -> Path:
    """Return `trainer.default_local_dir`; verl's default names project and experiment. Raises ConfigError."""
    text = str(values["trainer.default_local_dir"])
    for name in ("trainer.project_name", "trainer.experiment_name"):
        text = text.replace(f"${{{name}}}", str(values[name]))
    if not text or "://" in text:
        raise ConfigError(
            f"trainer.default_local_dir: expected a folder of this machine, got {shown(text)}; give --out"
        )
    return Path(text).expanduser()


def summary(translation: Translation, reading: VerlReading, values: Values, words: Sequence[str]) -> list[str]:
    """Return the counted line, the differences that are worth reading, and the command that prints all."""
    changed = [line for line in translation.lines if line.settings and line.given and _differs(line)]
    defaults = [line for line in translation.lines if line.settings and not line.given]
    lines = [translation.counted(), *(f"  note: {note}" for note in reading.notes)]
    lines += [f"  {line.key.theirs}={_short(line.value)} -> {_settings(line)}: {line.key.note}" for line in changed]
    lines += [f"  {line.key.theirs} is not given -> {_settings(line)}, verl's default" for line in defaults]
    lines += [f"  rows of {note}" for note in checker_notes(values)]
    nodes, devices = values["trainer.nnodes"], values["trainer.n_gpus_per_node"]
    if any(isinstance(count, int) and count > 1 for count in (nodes, devices)):
        lines.append(f"  {nodes} nodes with {devices} GPUs -> {DIALECT.table['trainer.nnodes'].note}")
    whole = command("config", "from-verl", *words)
    short = whole if len(whole) <= LONGEST else f"{command('config', 'from-verl')} with the same words"
    return [*lines, f"  all of it, as a recipe: {short}"]


def _differs(line: Line) -> bool:
    """Return whether a setting says more than the key did: another value, or a note."""
    return bool(line.key.note) and any(value != line.value for value in line.settings.values())


def _settings(line: Line) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in line.settings.items())


def _short(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 60 else shown(value)
