"""Trackio, on this machine or in a Hugging Face Space (`oncurve[trackio]`)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oncurve.tracking.protocol import CompletionRow, TrackedRun


class Trackio:
    """A run of trackio, in its local database or in a Space.

    Trackio finds a run by its name, so the name here is the run's with six digits of its id. It takes no point back,
    and writes every half second what it was told: its database says which steps it has.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._table: dict[str, Any] = {}
        self.place = ""

    def begin(self, run: TrackedRun) -> int:
        """Open the run of this name; returns the last step in its database, and in the Space."""
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        settings, name = run.settings, f"{run.name}-{run.id[:6]}"
        if settings.space is None:
            trackio.context_vars.current_project.set(settings.project)  # else `init` prints how to show a dashboard
        with _without_prints():
            self._run = trackio.init(
                settings.project,
                name,
                space_id=settings.space,
                config={**run.config, "tags": list(settings.tags)},
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        self.place = settings.space or f"trackio show --project {settings.project}"
        waiting = SQLiteStorage.get_max_step_for_run(settings.project, name)  # also steps not sent to a Space yet
        return int(max(-1 if waiting is None else waiting, self._run._next_step - 1))

    def groups(self, step: int, rows: Sequence[CompletionRow]) -> None:
        """A table under the key `completions`, logged together with the metrics of the step."""
        import trackio

        table = trackio.Table(columns=list(CompletionRow._fields), data=[list(row) for row in rows])
        self._table = {"completions": table}

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """One row of the database."""
        self._run.log({**metrics, **self._table}, step=step)
        self._table = {}

    def close(self) -> None:
        """Wait, 30 seconds at most, until everything is in the database."""
        if self._run is not None:
            with _without_prints():
                self._run.finish()


@contextmanager
def _without_prints() -> Iterator[None]:
    """Trackio prints what it does among the steps of a run. Its modules get a `print` of their own: a redirected
    standard output would take what other threads print, too.
    """
    import trackio.run

    modules = (trackio, trackio.run)
    for module in modules:
        vars(module)["print"] = lambda *words, **named: None
    try:
        yield
    finally:
        for module in modules:
            vars(module).pop("print", None)
