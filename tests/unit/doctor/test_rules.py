"""The doctor's rules on made records: where each begins to hold, and what it is quiet about."""

import json
import re
from pathlib import Path

import pytest

from fakes.metric_names import named
from fakes.tables import table
from oncurve.doctor import Watch, diagnose, in_words
from oncurve.doctor.case import Case, Sample, SampledGroup
from oncurve.doctor.examine import RULES, examine


def course(count: int = 60, first: int = 1, **values) -> list[dict[str, float]]:
    """Steps of a healthy run, metrics changed by functions of the step (or constants)."""
    healthy = {"reward": lambda s: 0.3 + 0.002 * s + 0.03 * (s % 3), "kl": lambda s: 1e-4 * s, "kl_coef": 0.001}
    healthy |= {"entropy": 0.4, "truncated": 0.1, "learning_rate": 1e-6, "constant": 0.4, "length": 40.0}
    healthy |= {"mismatch": 1e-6, "time/step": 10.0, "time/reward": 0.5, "time/processor_wait": 0.1}
    healthy |= {"optim/updates": 1.0, "optim/updates_skipped": 0.0, "memory/peak_bytes": 5e9}
    healthy |= {"completions/invalid": 0.0}
    made = named(healthy | values)
    return [
        {"step": number} | {key: value(number) if callable(value) else value for key, value in made.items()}
        for number in range(first, first + count)
    ]


def case(lines, groups=(), settings=None, memory=None) -> Case:
    return Case(lines[-40:], lines[:5], groups, settings or {}, memory)


def names(lines, groups=(), settings=None, memory=None) -> list[str]:
    return [found.rule for found in examine(case(lines, groups, settings, memory))]


SETTINGS = table("doctor_rules", "settings")


@pytest.mark.parametrize(
    ("rule", "key", "sick", "changes"), table("doctor_rules", "a_rule_holds_once_a_state_has_lasted")
)
def test_a_rule_holds_once_a_state_has_lasted(rule, key, sick, changes) -> None:
    flat = {"reward": sick["reward"]} if "reward" in sick else {}
    assert names(course()) == []
    assert names(course(**sick)) == [rule]
    (found,) = examine(case(course(**sick)))
    assert any(key in change for change in found.changes)
    assert found.text().startswith(f"{rule} (")
    assert names(course(**(sick | changes))) == []
    assert names([*course(57, **flat), *course(3, 58, **sick)]) == [rule]
    without = [{k: v for k, v in line.items() if k not in named(sick)} for line in course(**sick)]
    assert names(without) == []


def test_a_setting_that_is_set_already_is_not_advised() -> None:
    crowded = course(**{"time/processor_wait": 8.0})
    (free,), (settled,) = (examine(case(crowded, settings={"run": {"threads": count}})) for count in (2, 1))
    assert free.rule == settled.rule == "crowded-processors"
    assert any("run.threads" in change for change in free.changes)
    assert not any("run.threads" in change for change in settled.changes)
    assert settled.changes[0] == "End the other work."


def test_demonstrations_are_memorised_where_the_held_out_loss_rises_and_low_entropy_is_no_illness_there() -> None:
    settings = SETTINGS | {"advantage": {"kind": "demonstration"}}
    learned = [{**line, "eval/loss": 2.0 - 0.01 * line["step"]} for line in course(entropy=0.001)]
    assert names(learned, settings=settings) == []
    assert names([*learned, {**learned[-1], "eval/loss": 1.5}], settings=settings) == ["demonstrations-memorised"]
    assert names([*learned, {**learned[-1], "eval/loss": 1.5}]) == ["entropy-collapse", "demonstrations-memorised"]


def test_nothing_is_said_before_the_third_step_nor_of_an_empty_run() -> None:
    sick = course(3, reward=0.0, constant=1.0)
    assert names(sick) == ["all-wrong"]
    assert names(sick[:2]) == names([]) == []


def test_with_few_prompts_per_step_chance_is_given_more_steps() -> None:
    flat = course(20, reward=0.0, constant=1.0)
    assert case(flat, settings={"data": {"prompts_per_step": 4}}).span == 8
    assert names(flat[:7], settings={"data": {"prompts_per_step": 4}}) == []
    assert names(flat[:8], settings={"data": {"prompts_per_step": 4}}) == ["all-wrong"]
    assert case(flat, settings={"data": {"prompts_per_step": 1}}).span == 12
    assert case(flat, settings={"data": "edited"}).span == 3


def test_constant_groups_with_an_advantage_all_the_same_are_no_trouble() -> None:
    flat = course(5, reward=0.0, constant=1.0)
    assert names([line | {"advantage/abs_mean": 0.0} for line in flat]) == ["all-wrong"]
    assert names([line | {"advantage/abs_mean": 2.1} for line in flat]) == []


def test_a_short_run_without_a_gradient_is_too_short_to_tell_and_is_not_called_well(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[data]\nprompts_per_step = 4\n")
    log = tmp_path / "metrics.jsonl"
    for lines, words in (
        (course(5, reward=0.0, constant=1.0), "5 steps, too few to tell (the rules need 8); so far 100% of the groups"),
        (course(1, constant=0.5), "1 step, too few to tell (the rules need 8)"),
        (
            [{"step": 0.0, "eval/accuracy": 0.5}, *course(7, reward=0.0, constant=1.0)],
            "7 steps, too few to tell (the rules need 8); so far 100% of the groups",
        ),
        (course(8, constant=0.5), "8 steps, nothing found"),
    ):
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert words in in_words(diagnose(tmp_path))
        assert ("groups" in in_words(diagnose(tmp_path))) == ("groups" in words)


def test_a_run_that_has_solved_its_task_may_have_no_entropy() -> None:
    solved = {"reward": 0.97, "entropy": 0.004, "constant": 0.8}
    assert names(course(**solved)) == []
    assert names(course(**(solved | {"reward": 0.6}))) == ["entropy-collapse"]
    assert names(course(**(solved | {"reward": -0.97, "constant": 0.95}))) == ["entropy-collapse", "flat-reward"]


def test_a_policy_that_does_not_move_is_given_time_and_a_reference_that_moves_is_no_measure() -> None:
    assert names(course(39, kl=0.0)) == []
    assert names(course(40, kl=0.0)) == ["rate-too-low"]
    assert names(course(kl=0.0, kl_coef=0.0)) == []
    assert names(course(kl=0.0, learning_rate=lambda s: 1e-8 * s)) == []
    assert names(course(kl=0.0, moved=1.0)) == []


def test_a_reward_that_falls_while_the_kl_jumps_is_too_high_a_learning_rate() -> None:
    def falls(s: int) -> float:
        return 0.5 + 0.02 * (s % 2) if s < 28 else 0.2

    def jumps(s: int) -> float:
        return 0.01 if s < 28 else 0.2

    for kl in ("kl", "kl_old"):
        lines = [
            {k: v for k, v in line.items() if kl == "kl" or k != "policy/kl"} for line in course(30, **{kl: jumps})
        ]
        assert names(lines) == []
        fallen = [line | {"reward/mean": falls(int(line["step"]))} for line in lines]
        assert names(fallen) == ["rate-too-high"]
    assert names(course(30, reward=falls)) == []
    assert names(course(6, 25, reward=falls, kl=jumps)) == []  # too little before to compare with
    assert names(course(30, kl=jumps, reward=lambda s: 0.5 + 0.2 * (s % 2) - 0.1 * (s >= 28))) == []  # noise


@pytest.mark.parametrize(("later", "cut", "rule"), [(10.0, 0.0, "length-collapse"), (80.0, 0.5, "length-growth")])
def test_lengths_are_compared_with_those_of_the_first_steps(later, cut, rule) -> None:
    def run(length=later, share=cut, first_share=0.0):
        return course(
            20, length=lambda s: 40.0 if s < 6 else length, truncated=lambda s: first_share if s < 6 else share
        )

    assert names(run()) == [rule]
    assert names(run(length=(later + 40) / 2)) == []
    assert names(run(first_share=0.5)) == []  # it was cut off from the start: shorter is better, longer is impossible
    assert names(run()[:7]) == []
    assert names(run()[10:]) == []  # a resumed run has no first steps to compare with


def sampled(*rows, answer="12") -> SampledGroup:
    """A group of (text, length, reward) rows."""
    return SampledGroup(tuple(Sample(*row) for row in rows), {"answer": answer})


def test_right_answers_without_a_reward_are_seen_at_the_end_of_completions() -> None:
    flat = course(5, reward=0.0, constant=1.0)

    def group(last, answer="12", others=15):
        return sampled((f"3*4\n{last}\n", 5, 0.0), *[("12 first\n7", 5, 0.0)] * others, answer=answer)

    for last in ("So it is 12.", "\\boxed{12}", "**12**", "12 apples", "= 12"):
        assert names(flat, [group(last)] * 5) == ["answers-not-recognised"]
    for last in ("112", "12.5", "1,12", "-x12", "12,000"):
        assert names(flat, [group(last)] * 5) == ["all-wrong"], last
    assert names(flat, [group("12")] * 4) == ["all-wrong"]  # four may be chance
    assert names(flat, [group("12", others=20)] * 5) == ["all-wrong"]
    assert names(flat, [group("12", "So 3*4 = 12\n#### 12")] * 5) == ["answers-not-recognised"]
    assert names(flat, [group("B", "B", others=9)] * 9) == ["all-wrong"]  # one letter is often right by chance
    assert names(flat, [group("B", "B", others=3)] * 9) == ["answers-not-recognised"]
    column = {"rewards": [{"kind": "math", "answer": "key"}]}
    keyed = [SampledGroup(group("12").samples, {"key": 12, "answer": "40"})] * 5
    assert names(flat, keyed) == ["all-wrong"]
    assert names(flat, keyed, column) == ["answers-not-recognised"]


def test_a_reward_that_length_predicts_is_a_suspect_within_groups_only() -> None:
    def groups(slope, noise=0.0):
        return [sampled(*[(f"{n}{m}", m, slope * m + n + noise * (-1) ** m) for m in range(5, 13)]) for n in range(4)]

    assert names(course(), groups(0.1)) == names(course(), groups(-0.1)) == ["length-correlation"]
    assert "-1.00 over 32" in examine(case(course(), groups(-0.1)))[0].evidence
    assert names(course(), groups(0.1, noise=0.5)) == []
    assert names(course(), groups(0.1)[:3]) == []  # 24 completions
    assert names(course(), groups(0.0)) == []


def test_without_a_kl_a_reward_that_is_lost_names_the_rate() -> None:
    def falls(step: int) -> float:
        return 0.195 if step == 1 else 0.005

    lost = course(reward=falls, constant=1.0, truncated=1.0)
    for line in lost:
        del line["policy/kl"], line["policy/kl_coef"]
    assert names(lost) == ["rate-too-high"]
    never = [line | {"reward/mean": 0.005} for line in lost]
    assert "rate-too-high" not in names(never)


def test_one_text_for_many_prompts_is_an_alarm_but_not_one_letter() -> None:
    def groups(length, same=6):
        return [
            sampled(*[("yes" if m < same else f"{n}{m}", length, float(m % 2)) for m in range(10)]) for n in range(4)
        ]

    assert names(course(), groups(8)) == ["one-text"]
    assert "24 of the last 40 completions, over 4 prompts" in examine(case(course(), groups(8)))[0].evidence
    assert names(course(), groups(7)) == names(course(), groups(8, same=4)) == names(course(), groups(8)[:3]) == []


def test_one_part_dominates_where_another_one_falls() -> None:
    def group(big=1.0):
        rows = [(f"{m}", m % 3 + 5, 0.0, {"right": float(m == 1), "style": big * (m % 2)}) for m in range(8)]
        return [sampled(*rows)]

    falling = {"rewards/right": lambda s: 0.5 if s < 9 else 0.2, "rewards/style": lambda s: min(1.0, s / 20)}
    weights = {"rewards": [{"kind": "task", "weight": 1.0}, {"kind": "python", "weight": 4.0}]}
    assert names(course(**falling), group(), weights) == ["one-part-dominates"]
    assert "'right' fell from 0.5 to 0.2" in examine(case(course(**falling), group(), weights))[0].evidence
    assert names(course(**falling), group()) == []  # weights unknown: 1 each
    assert names(course(**(falling | {"rewards/right": 0.5})), group(), weights) == []


def test_faults_memory_and_mismatch_are_measured_by_the_settings() -> None:
    assert names(course(**{"completions/invalid": 12.8}), settings=SETTINGS) == ["reward-faults"]
    assert names(course(**{"completions/invalid": 12.7}), settings=SETTINGS) == []
    assert names(course(**{"completions/invalid": 100.0})) == []  # of how many is not known
    assert names(course(), memory=5.5e9) == ["memory-near-limit"]
    assert names(course(), memory=5.6e9) == names(course()) == []
    assert names(course(**{"optim/out_of_memory": 1.0}), memory=1e12) == ["memory-near-limit"]
    assert names(course(mismatch=2e-3), settings=SETTINGS) == ["sampler-mismatch"]
    surplus = SETTINGS | {"filter": {"dynamic_sampling": True}}
    assert names(course(mismatch=2e-3), settings=surplus) == []
    corrected = SETTINGS | {"correction": {"kind": "token"}}
    assert names(course(mismatch=0.5), settings=corrected) == []
    lagging = SETTINGS | {"cluster": {"kind": "host", "lag": 1}}
    assert names(course(mismatch=0.5), settings=lagging) == []
    assert names(course(mismatch=0.5), settings=lagging | {"objective": {"kind": "reinforce"}}) == ["sampler-mismatch"]
    prompt = SETTINGS | {"cluster": {"kind": "host", "lag": 0}}
    assert names(course(mismatch=0.5), settings=prompt) == ["sampler-mismatch"]


def test_a_watch_gives_each_alarm_once_and_no_hints() -> None:
    watch = Watch({}, {})
    given = [
        (line["step"], found.rule)
        for line in course(80, kl=0.0, truncated=lambda s: min(1.0, s / 50), **{"time/reward": 9.0})
        for found in watch.step(line)
    ]
    assert given == [(40, "rate-too-low"), (46, "truncated")]


def test_the_page_has_a_row_for_each_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(rule.name, rule.level) for rule in RULES]
