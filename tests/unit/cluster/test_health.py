"""The health of a fleet's places: events and the time in, orders out; no process and no clock."""

from hypothesis import given, strategies as st

from oncurve.processes.fleets import ProcessEnded
from oncurve.processes.fleets.health import (
    FORGIVEN_SECONDS,
    LONGEST_QUARANTINE_SECONDS,
    PAUSES,
    QUARANTINE_SECONDS,
    WITHIN_SECONDS,
    Health,
    Kill,
    ListeningClock,
    Start,
)

SILENCE, START = 20.0, 300.0


def healthy(places: int = 2) -> Health:
    """A fleet of which all processes are up at time 0."""
    health = Health(places, SILENCE, START)
    for place, order in enumerate(health.orders(0.0)):
        assert order == Start(place, place)
        health.is_up(place, 0.0)
    return health


def test_every_place_gets_a_process_and_no_second_one() -> None:
    health = Health(2, SILENCE, START)
    assert health.starting
    assert health.orders(0.0) == [Start(0, 0), Start(1, 1)]
    assert health.orders(1.0) == []
    health.is_up(1, 2.0)
    assert health.up == [1]
    assert health.starting
    health.is_up(0, 3.0)
    assert health.up == [0, 1]
    assert not health.starting


def test_the_second_death_in_a_minute_costs_a_pause_and_the_third_a_quarantine_that_ends() -> None:
    health = healthy(1)
    health.has_ended(0, "killed", 5.0)
    assert health.orders(5.0) == [Start(0, 1)]
    health.is_up(1, 5.0)
    health.has_ended(1, "killed", 6.0)
    assert not health.starting
    assert health.orders(6.0 + PAUSES[2] - 0.1) == []
    assert health.orders(6.0 + PAUSES[2]) == [Start(0, 2)]
    health.is_up(2, 9.0)
    assert health.has_ended(2, "killed", 10.0) == ProcessEnded(2, "killed", QUARANTINE_SECONDS)
    assert health.quarantined
    assert not health.starting
    assert health.orders(10.0 + QUARANTINE_SECONDS - 0.1) == []
    assert health.orders(10.0 + QUARANTINE_SECONDS) == [Start(0, 3)]
    assert not health.quarantined


def quarantine_after(health: Health, process: int, now: float) -> float:
    """The seconds of the quarantine after three deaths in a row, from `process` on."""
    for number in range(process, process + 3):
        health.orders(now + PAUSES[-1])
        health.is_up(number, now)
        ended = health.has_ended(number, "killed", now)
    return ended.quarantine


def test_each_quarantine_is_longer_up_to_a_limit_and_a_long_life_ends_the_series() -> None:
    health, now, found = Health(1, SILENCE, START), 0.0, []
    for turn in range(7):
        found.append(quarantine_after(health, 3 * turn, now))
        now += found[-1]
    assert found == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0]
    assert found[0] == QUARANTINE_SECONDS
    assert found[-1] == LONGEST_QUARANTINE_SECONDS
    assert health.orders(now) == [Start(0, 21)]
    health.is_up(21, now)
    health.has_ended(21, "killed", now + FORGIVEN_SECONDS)
    assert quarantine_after(health, 22, now + FORGIVEN_SECONDS + WITHIN_SECONDS) == QUARANTINE_SECONDS


def test_silence_is_a_death_and_its_cause_is_kept() -> None:
    health = healthy()
    health.heard(0, 10.0)
    assert health.orders(SILENCE) == []
    (order,) = health.orders(SILENCE + 0.1)
    assert order == Kill(1, "it hangs or was stopped: silent for 20 seconds (cluster.silence_seconds)")
    assert health.orders(SILENCE + 0.2) == []
    assert health.up == [0]
    assert health.has_ended(1, "killed by signal SIGKILL", SILENCE + 1) == ProcessEnded(1, order.cause)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 30.0), st.sampled_from(["die", "say", "wait"])), max_size=60)
)
def test_whatever_happens_a_place_never_has_two_processes(events: list[tuple[int, float, str]]) -> None:
    health, now, started, over = Health(3, SILENCE, START), 0.0, set[int](), set[int]()
    for which, seconds, what in events:
        now += seconds
        for order in health.orders(now):
            assert isinstance(order, Start | Kill)
            if isinstance(order, Start):
                assert order.process not in started
                started.add(order.process)
                health.is_up(order.process, now)
            else:
                assert health.has_ended(order.process, "killed", now) is not None
                over.add(order.process)
        alive = sorted(started - over)
        assert sorted(health.up) == alive
        assert len(alive) <= 3
        if what == "say" and which < len(alive):
            health.heard(alive[which], now)
        if what == "die" and which < len(alive):
            assert health.has_ended(alive[which], "killed", now) is not None
            over.add(alive[which])
    health.orders(now + LONGEST_QUARANTINE_SECONDS)
    assert health.starting or len(health.up) == 3  # no place is lost for good


def test_time_in_which_this_process_did_not_listen_is_no_silence() -> None:
    turns = iter([0.0, 0.25, 0.5, 3600.0, *(3600.0 + 0.25 * turn for turn in range(1, 200))])
    clock = ListeningClock(lambda: next(turns))
    health = healthy()
    for _ in range(3):  # in the last of which it was stopped for an hour, and has not read a message since
        clock.turn()
        assert health.orders(clock.now) == []
    heard = clock.now
    health.heard(0, heard)
    while clock.now <= SILENCE:
        clock.turn()
    assert health.orders(clock.now) == [
        Kill(1, f"it hangs or was stopped: silent for {SILENCE:g} seconds (cluster.silence_seconds)")
    ]
    assert clock.now - heard < SILENCE


def test_the_time_for_its_start_begins_when_a_process_is_no_longer_queued() -> None:
    health = Health(1, SILENCE, START)
    health.orders(0.0)
    health.is_queued(0, START)
    assert health.orders(2 * START) == []
    assert health.orders(2 * START + 1) == [Kill(0, f"it did not start within {START:g} seconds")]
