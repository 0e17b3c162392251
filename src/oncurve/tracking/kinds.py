"""The trackers that `tracking.to` names."""

from importlib.util import find_spec
from inspect import signature

from oncurve.base.errors import ConfigError, shown, suggest
from oncurve.base.imports import locate
from oncurve.tracking.protocol import Tracker, TrackingSettings
from oncurve.tracking.tensorboard import TensorBoard
from oncurve.tracking.trackio import Trackio
from oncurve.tracking.wandb import Wandb

TRACKER_KINDS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def tracker_class(kind: str) -> type[Tracker]:
    """Return the tracker that `kind` names: a name of `TRACKER_KINDS`, or a path to a class (`"file.py:Name"`).

    Raises ConfigError: there is none, or it lacks a method.
    """
    if ":" not in kind:
        if kind not in TRACKER_KINDS:
            near = suggest(kind, TRACKER_KINDS) or ";"
            names = ", ".join(TRACKER_KINDS)
            raise ConfigError(f"unknown tracker {shown(kind)}{near} choose among: {names}, or 'file.py:Name'")
        return TRACKER_KINDS[kind]
    found = locate(kind)
    if not isinstance(found, type):
        raise ConfigError(f"{kind} is no class, but {shown(found)}; a tracker is a class, made without arguments")
    lacks = [name for name in ("begin", "groups", "metrics", "close") if not callable(getattr(found, name, None))]
    if lacks:
        raise ConfigError(f"{kind} lacks {' and '.join(lacks)}, so it is no tracker")
    try:
        signature(found).bind()
    except TypeError as error:
        raise ConfigError(f"{kind}: {error}; a tracker is made without arguments") from None
    return found


def trackers(settings: TrackingSettings) -> dict[str, type[Tracker]]:
    """Return the classes that `tracking.to` names.

    Raises ConfigError for those that cannot work here: not known, not installed, without an account.
    """
    classes: dict[str, type[Tracker]] = {}
    for kind in settings.to:
        try:
            classes[kind] = tracker_class(kind)
        except ConfigError as error:
            raise ConfigError(f"tracking.to: {error}") from error
        if kind in TRACKER_KINDS and find_spec(kind) is None:  # they are called like their libraries
            raise ConfigError(f"tracking.to: {kind} is not installed: pip install 'oncurve[{kind}]'")
        problem = getattr(classes[kind], "problem", None)
        said = None if problem is None else problem(settings)
        if said is not None:
            raise ConfigError(f"tracking.to: {said}")
    return classes
