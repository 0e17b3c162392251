"""`oncurve train --verl`: a run by verl's settings, in the folder and with the resumption that they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oncurve.base.errors import ConfigError, command, shown
from oncurve.base.output import say
from oncurve.compat.dialect import Line, Translation, Values
from oncurve.compat.loading import config_of
from oncurve.compat.verl.reading import Reading, read
from oncurve.compat.verl.reward import checker_notes
from oncurve.compat.verl.table import DIALECT
from oncurve.compat.verl.trainer import FOLDER, ONE_MACHINE
from oncurve.run import train_or_resume, train_recipe

LONGEST = 200
"""Characters of a command line that is printed."""


def translated(words: Sequence[str]) -> tuple[Translation, Reading]:
    """The settings of words as `--verl` takes them, and how they were read. Raises ConfigError."""
    reading = read(words)
    return DIALECT.translate(reading.said), reading


def train_verl(words: Sequence[str], out: Path | None = None, resume_if_there: bool = False) -> str | None:
    """Train by verl's settings; returns the signal that stopped the run, or None.

    words             a script, a YAML file, or assignments; see `read`
    out               the run's folder; None: `trainer.default_local_dir`
    resume_if_there   continue the run that is there; so does `trainer.resume_mode=auto`, verl's default

    Prints what the settings became. Raises ConfigError, before anything expensive.
    """
    translation, reading = translated(words)
    config, base = config_of(translation)
    values = Values(DIALECT.table, reading.said)
    folder = out or _folder(values)
    for line in [*summary(translation, reading, values, words), f"folder  {folder}", ""]:
        say(line)
    if resume_if_there or values["trainer.resume_mode"] == "auto":
        return train_or_resume(config, base, folder)
    return train_recipe(config, base, folder)


def _folder(values: Values) -> Path:
    """`trainer.default_local_dir`, of which verl's default names project and experiment."""
    text = str(values["trainer.default_local_dir"])
    if text == FOLDER:
        names = values["trainer.project_name"], values["trainer.experiment_name"]
        text = "/".join(["checkpoints", *names])
    if not text or "://" in text:
        raise ConfigError(
            f"trainer.default_local_dir: expected a folder of this machine, got {shown(text)}; give --out"
        )
    return Path(text).expanduser()


def summary(translation: Translation, reading: Reading, values: Values, words: Sequence[str]) -> list[str]:
    """The counted line, the differences that are worth reading, and the command that prints all."""
    changed = [line for line in translation.lines if line.settings and line.given and _differs(line)]
    defaults = [line for line in translation.lines if line.settings and not line.given]
    lines = [translation.counted(), *(f"  note: {note}" for note in reading.notes)]
    lines += [f"  {line.key.theirs}={_short(line.value)} -> {_settings(line)}: {line.key.note}" for line in changed]
    lines += [f"  {line.key.theirs} is not given -> {_settings(line)}, verl's default" for line in defaults]
    lines += [f"  rows of {note}" for note in checker_notes(values)]
    nodes, devices = values["trainer.nnodes"], values["trainer.n_gpus_per_node"]
    if any(isinstance(count, int) and count > 1 for count in (nodes, devices)):
        lines.append(f"  {nodes} nodes with {devices} GPUs -> {ONE_MACHINE}")
    whole = command("config", "from-verl", *words)
    short = whole if len(whole) <= LONGEST else f"{command('config', 'from-verl')} with the same words"
    return [*lines, f"  all of it, as a recipe: {short}"]


def _differs(line: Line) -> bool:
    """Whether a setting says more than the key did: another value, or a note."""
    return bool(line.key.note) and any(value != line.value for value in line.settings.values())


def _settings(line: Line) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in line.settings.items())


def _short(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() and len(value) <= 60 else shown(value)
