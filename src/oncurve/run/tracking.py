"""The trackers of a run: what they are told of it, and when."""

from collections.abc import Callable

from oncurve.base.errors import ConfigError
from oncurve.config import RunConfig, to_tables
from oncurve.run.assembly import Run
from oncurve.tracking import Follower, TrackedRun, Tracking, trackers
from oncurve.trainer import StepResult


def check_tracking(config: RunConfig, kept: bool = True) -> None:
    """Raises ConfigError for trackers that cannot work here. `kept`: whether the run has a directory."""
    if trackers(config.tracking) and not kept:
        raise ConfigError("tracking.to: trackers follow the log in a run directory; name one: out='runs/mine'")


def track(run: Run) -> Tracking:
    """Begin the trackers that the settings name; none where the run has no directory. Returns at once."""
    settings, directory = run.config.tracking, run.directory
    if directory is None or not settings.to:
        return Tracking(settings)
    told = TrackedRun(
        id=(directory.identity() or {}).get("id", directory.path.resolve().name),
        name=settings.name or run.config.run.name or directory.path.resolve().name,
        config=to_tables(run.config),
        folder=directory.path,
        step=run.trainer.state.step,
        settings=settings,
    )
    log = directory.path / "metrics.jsonl"
    return Tracking(settings, [Follower(name, make, told, log) for name, make in trackers(settings).items()])


def shown_to(tracking: Tracking, say: Callable[[str], None]) -> Callable[[StepResult], None]:
    """Return an observer that gives each step to the trackers, and prints their news."""

    def observe(result: StepResult) -> None:
        tracking.recorded(result.step, result.groups, result.advantages)
        for line in tracking.news():
            say(line)

    return observe
