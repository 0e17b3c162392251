"""Episodes in any number of waves and workers are what one row alone writes; what goes wrong leaves one row out."""

import os
from collections import Counter
from pathlib import Path

import psutil
import pytest

from fakes import episodes
from fakes.played import TOKENIZER, prompts, table
from fakes.scripted import TableModel
from fakes.tolerance import about
from oncurve.environments import Dialogue, EpisodeEngine, Host, Tools
from oncurve.models import LocalWeights
from oncurve.rollout import InProcessEngine, Sampling
from oracles import plain_episodes
from oracles.plain_truncation import sets_of

SIZE, SEED, MOST = 2, 5, 60


def engine(name, most=MOST, cut=None, longest=None, **settings):
    environment = Tools(path=f"{Path(episodes.__file__)}:{name}", **{"processes": 2, "max_turns": 4, **settings})
    sampling = Sampling(group_size=SIZE, max_new_tokens=most, **(cut or {}))
    inner = InProcessEngine(sampling, TOKENIZER, [TOKENIZER.eos_token_id], SEED)
    inner.follow(LocalWeights(TableModel(table()), 7))
    dialogue = Dialogue(TOKENIZER, [TOKENIZER.eos_token_id], {})
    return EpisodeEngine(inner, Host(environment, None), dialogue, inner.sampling, SEED, False, longest)


def whole(group, completion):
    """Everything of a completion that may not depend on what else is played, with the prompt that it follows."""
    return (*group.prompt.ids, *completion.ids), completion.logprobs, completion.ended, completion.outcome


@pytest.mark.parametrize(("waves", "processes", "most"), [(1, 1, 60), (2, 3, 60), (5, 2, 14)])
def test_episodes_are_what_each_row_plays_alone(waves, processes, most):
    rows = [{"more": number % 3} for number in range(5)]
    seen, endings = [], Counter()
    with engine("Guess", most, waves=waves, processes=processes) as playing:
        given = prompts(rows)
        groups = playing.generate(given, draw=3, on_group=lambda index, group: seen.append(index))
    assert sorted(seen) == list(range(len(rows)))
    for prompt, row, group in zip(given, rows, groups, strict=True):
        assert group.prompt.id == prompt.id
        for sample, completion in enumerate(group.completions):
            key = (SEED, 3, prompt.id, sample)
            alone = plain_episodes.play(
                episodes.Guess(), table().tolist(), TOKENIZER, prompt.ids, key, row, most, max_turns=4
            )
            skipped = len(group.prompt.ids) + len(completion.ids) - len(prompt.ids) - len(alone.ids)
            start = [*group.prompt.ids, *completion.ids][: len(prompt.ids) + skipped]
            assert [*start, *alone.ids] == [*group.prompt.ids, *completion.ids]
            assert list(completion.trained) == [False] * (len(completion.ids) - len(alone.ids)) + alone.trained
            assert list(completion.logprobs)[-len(alone.ids) :] == about(alone.logprobs)
            assert (completion.ended, completion.outcome) == (alone.ended, alone.outcome)
            assert (completion.sample_index, completion.policy_version) == (sample, 7)
            turns = [turn for turn in completion.turns if turn.role == "assistant"]
            assert [turn.reward for turn in turns] == alone.rewards
            written = [token for turn in turns for token in completion.ids[turn.start : turn.end]]
            assert written == [t for t, own in zip(completion.ids, completion.trained, strict=True) if own]
            assert [0, *(turn.end for turn in completion.turns)][-1] == len(completion.ids)
            endings[completion.ended] += 1
    assert set(endings) >= ({"environment", "turns"} if most == MOST else {"budget", "length"})


def test_tokens_that_the_policy_wrote_have_kept_sets_and_the_others_the_whole_vocabulary():
    with engine("Guess", cut={"top_k": 5}) as playing:
        groups = playing.generate(prompts([{"more": 2}] * 2), draw=0)
    for completion in (each for group in groups for each in group.completions):
        sets = sets_of(completion.kept_sizes, completion.kept_ids, len(TOKENIZER))
        assert [len(one) for one in sets] == [5 if own else len(TOKENIZER) for own in completion.trained]
        assert all(token in one for token, one in zip(completion.ids, sets, strict=True))


def test_text_of_an_environment_is_never_a_special_token():
    with engine("Guess") as playing:
        groups = playing.generate(prompts([{"more": 2}] * 6), draw=0)
    special = {TOKENIZER.eos_token_id, TOKENIZER.bos_token_id}
    spans = [
        (turn, completion.ids[turn.start : turn.end])
        for group in groups
        for completion in group.completions
        for turn in completion.turns
        if turn.role != "assistant"
    ]
    assert any("<eos>" in turn.text for turn, _ in spans)
    assert not any(special & set(ids) for _, ids in spans)


FAULTS = {
    **dict.fromkeys(("start", "no text", "raises", "score", "bad score"), "exception: "),
    **dict.fromkeys(("dies", "forks"), "died: "),
    "exits": "exit: ",
    "hangs": "timeout: ",
    "memory": "memory: ",
}


@pytest.mark.parametrize(
    ("name", "hows"),
    [("Broken", [*FAULTS, "prints"])]
    + [("BrokenLater", [how]) for how in ("raises", "exits", "dies", "hangs", "score")],  # one ends all coroutines
)
def test_a_broken_episode_is_left_out_and_the_others_go_on_as_if_nothing_were(name, hows, capfd):
    rows = [row for how in hows for row in ({}, {"how": how})]
    with engine(name, timeout_seconds=2.0, memory_limit_bytes=1 << 30) as playing:
        right = playing.generate(prompts([{}] * len(rows)), draw=0)
        groups = playing.generate(prompts(rows), draw=0)
        noted = playing.measured()
    count = 0
    for row, unbroken, group in zip(rows, right, groups, strict=True):
        if row.get("how", "prints") == "prints":
            expected = [whole(unbroken, completion) for completion in unbroken.completions]
            assert [whole(group, completion) for completion in group.completions] == expected
            continue
        faulty = [one for one in group.completions if one.fault is not None]
        assert faulty, row
        assert all(one.fault.startswith(f"environment: {FAULTS[row['how']]}") and one.ids for one in faulty), row
        assert all(one.ended == "length" for one in group.completions if one.fault is None)  # not asked any more
        places = {"episodes.py line " in one.fault for one in faulty if one.fault.startswith("environment: exception")}
        assert places <= {row["how"] in ("start", "raises", "score")}, row
        count += len(faulty)
    assert noted["environment/faults"] == count
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "3600"]]


def test_coroutines_of_all_episodes_of_a_worker_run_next_to_each_other_and_have_draws_of_their_own():
    def played(meets, processes):
        with engine("Meeting", processes=processes, waves=1, max_turns=2, timeout_seconds=20) as playing:
            groups = playing.generate(prompts([{"meets": meets}] * 2), draw=0)
        return [whole(group, one) for group in groups for one in group.completions]

    assert played(2 * SIZE, processes=1) == played(1, processes=2)


def test_a_wave_whose_environments_have_replied_is_decoded_before_one_that_waits():
    rows = [{"number": number} for number in range(2)]
    with engine("Late", processes=1, waves=2, timeout_seconds=20) as playing:
        groups = playing.generate(prompts(rows), draw=0)
    assert {one.ended for group in groups for one in group.completions} <= {"environment", "length"}
    assert not any(one.fault for group in groups for one in group.completions)


def test_an_odd_reply_ends_the_episode_with_a_reason():
    rows = [{"how": how} for how in ("none", "huge", "no role", "number", "image", "nan", "reward")]
    with engine("Odd") as playing:
        groups = playing.generate(prompts(rows), draw=0)
    reasons = {
        row["how"]: [one for one in group.completions if one.ended != "length"]
        for row, group in zip(rows, groups, strict=True)
    }
    assert all(reasons.values())
    for one in reasons.pop("huge"):
        assert (one.ended, one.truncated, one.fault) == ("budget", True, None)
        last = one.turns[-1]  # the reply that had no room
        assert (last.start, last.end) == (len(one.ids),) * 2
        assert 0 < len(last.text) <= 2000
    del reasons["nan"]
    assert all(one.fault.startswith("environment: ") for ended in reasons.values() for one in ended)


def test_a_start_that_leaves_no_room_ends_its_own_episode_alone():
    given = prompts([{}] * 6)
    with engine("Guess", longest=MOST + len(given[0].ids)) as playing:
        faults = {one.fault for group in playing.generate(given, draw=0) for one in group.completions}
    assert len(faults - {None}) == 1 < len(faults)
    assert "tokens, and with rollout.max_new_tokens = " in (faults - {None}).pop()


@pytest.mark.parametrize("name", ["Deadly", "Guess"])
def test_an_episode_whose_worker_died_is_played_again_to_the_same_bits(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ONCURVE_DEADLY", str(tmp_path / "died"))
    given = prompts([{"more": 1}] * 4)
    with engine("Guess") as playing:
        right = playing.generate(given, draw=0)
    with engine(name, processes=1, env_pass=("ONCURVE_DEADLY",)) as playing:
        if name == "Guess":  # killed from outside, in the middle
            groups = playing.generate(given, draw=0, on_group=killing(playing))
        else:
            groups = playing.generate(given, draw=0)
            assert os.path.exists(tmp_path / "died")
    for one, two in zip(right, groups, strict=True):
        assert [whole(one, each) for each in one.completions] == [whole(two, each) for each in two.completions]


def killing(playing):
    """Kill all workers, once, when the first group is complete."""
    left = [True]

    def kill(index, group):
        if left.pop() if left else False:
            for pid in [pid for pool in playing.host.pools for pid in pool.pids]:
                psutil.Process(pid).kill()

    return kill


def test_an_environment_that_is_not_exact_is_not_played_again():
    with engine("Forgetful", processes=1, exact=False) as playing:
        given = prompts([{"more": 3}] * 4)
        groups = playing.generate(given, draw=0, on_group=killing(playing))
    faults = {completion.fault for group in groups for completion in group.completions} - {None}
    assert all("exact = false" in fault for fault in faults)


def test_what_is_given_up_leaves_no_process():
    with engine("Broken", timeout_seconds=2.0) as playing:
        with pytest.raises(KeyboardInterrupt):
            playing.generate(prompts([{}, {"how": "hangs"}]), draw=0, on_group=_interrupt)
        pids = [pid for pool in playing.host.pools for pid in pool.pids]
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def _interrupt(index, group):
    raise KeyboardInterrupt
