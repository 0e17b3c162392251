"""Programs that call the policy: what goes on is one row, whatever runs beside it; what goes wrong leaves one out."""

import os
from pathlib import Path

import psutil
import pytest

import oncurve.models.tiny
from fakes import agents
from fakes.played import prompts, table
from fakes.scripted import TableModel
from oncurve.environments import Dialogue, Endpoint, Host, Programs
from oncurve.models import LocalWeights
from oncurve.models.loading import load_tokenizer
from oncurve.rollout import EngineBase, InProcessEngine, Sampling, sample
from oncurve.types import Completion, Group, Prompt

pytestmark = pytest.mark.slow

TOKENIZER = load_tokenizer(str(Path(oncurve.models.tiny.__file__).parent), local=True)
TOKENIZER.chat_template = (
    "{% if tools %}<bos>[tools]{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}<bos>[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<bos>[assistant]{% endif %}"
)
EOS, BOS = TOKENIZER.eos_token_id, TOKENIZER.bos_token_id
SIZE, SEED, MOST = 2, 5, 300


class Adder(EngineBase):
    """Answers a sum by a call of `add`, and the result of the call by the result."""

    exact = True

    def follow(self, weights):
        pass

    def generate(self, prompts, draw, sampling=None, on_group=None, first_samples=None):
        groups = []
        for index, prompt in enumerate(prompts):
            last = TOKENIZER.decode(prompt.ids).rsplit("<bos>", 2)[-2]
            x, _, y = last.partition("]")[2].partition("<eos>")[0].partition("+")
            call = f'I add.<tool_call>{{"name": "add", "arguments": {{"x": {x}, "y": {y or 0}}}}}</tool_call>'
            text = call if last.startswith("[user]") else x
            ids = (*TOKENIZER(text, add_special_tokens=False)["input_ids"], EOS)
            one = Completion(ids, text, (-0.5,) * len(ids), "eos", first_samples[index], 3)
            groups.append(Group(prompt, (one,) * sampling.group_size, draw=draw))
            on_group(index, groups[-1])
        return groups


def engine(name, inner=None, most=MOST, **settings):
    given = {} if "command" in settings else {"program": f"{Path(agents.__file__)}:{name}"}
    environment = Endpoint(**given, **{"processes": 2, "max_turns": 6, "timeout_seconds": 30.0, **settings})
    sampling = Sampling(group_size=SIZE, max_new_tokens=most)
    if inner is None:
        inner = InProcessEngine(sampling, TOKENIZER, [EOS], SEED)
        inner.follow(LocalWeights(TableModel(table(), longest_row=4000), 7))
    dialogue = Dialogue(TOKENIZER, [EOS], {})
    host = Host(environment, None)
    return Programs(inner, host, dialogue, sampling, SEED)


def whole(group, completion):
    """Everything of a completion that may not depend on what else runs, with the prompt that it follows."""
    context = (*group.prompt.ids, *completion.ids), completion.trained, completion.logprobs
    return *context, completion.ended, completion.outcome, completion.sample_index, completion.fault


def played(name, rows, draw=0, **settings):
    with engine(name, **settings) as playing:
        return playing.generate(prompts(rows), draw)


def everything(groups):
    return [[whole(group, each) for each in group.completions] for group in groups]


def test_what_a_program_gets_depends_on_nothing_that_runs_beside_it():
    rows = [{"aside": number % 2} for number in range(3)]
    groups, other = (played("talk", rows, waves=number, processes=number**2) for number in (1, 2))
    assert everything(other) == everything(groups)
    special, checked = set(TOKENIZER.all_special_ids), 0
    for row, group in zip(rows, groups, strict=True):
        assert len(group.completions) == SIZE * (1 + row["aside"])
        assert group.firsts() == list(range(0, len(group.completions), 1 + row["aside"]))
        assert len({each.outcome for each in group.completions}) <= SIZE
        for one in group.completions:
            written = [turn for turn in one.turns if turn.role == "assistant"]
            trained = [token for token, own in zip(one.ids, one.trained, strict=True) if own]
            assert [token for turn in written for token in one.ids[turn.start : turn.end]] == trained
            assert one.policy_version == 7
            assert one.fault is None
            text = TOKENIZER.decode([*group.prompt.ids, *one.ids])
            said = [turn.text for turn in written]
            asked = [f"<bos>[user]<eos>more{number} <eos>\n" for number in range(len(said) - 1)]
            tail = "".join(f"<bos>[assistant]{t}<eos>\n{a}" for t, a in zip(said, [*asked, ""], strict=True))
            if special.isdisjoint(token for turn in written for token in one.ids[turn.start : turn.end - 1]):
                assert text.endswith(tail.removesuffix("\n"))
                checked += len(said) > 1
    assert checked


def test_a_command_is_run_as_a_function_is():
    rows = [{"aside": 1}, {}]
    titles = {("python", "a.py", "--seed", "4"): "a", ("sh", "-c", "python a.py 2>&1"): "sh", ("my a.py",): "my_a"}
    assert {command: Endpoint(command=command).title for command in titles} == titles
    command = ("python", str(Path(agents.__file__)))
    found = played("", rows, command=command)
    assert everything(found) != []
    assert all(each.fault is None and each.outcome >= 0 for group in found for each in group.completions)


FAULTS = {
    **dict.fromkeys(("raises", "text", "unread"), "exception: "),
    **dict.fromkeys(("never", "key"), "none: "),
    "exits": "exit: ",
    "dies": "died: ",
    "hangs": "timeout: ",
}


def test_a_broken_program_is_left_out_and_the_others_go_on_as_if_nothing_were():
    fine = ["junk", "special", "many", "long", "posts", None]
    rows = [{"how": how} for how in [*FAULTS, *fine]]
    with engine("broken", timeout_seconds=4.0, processes=4) as playing:
        groups = dict(zip([*FAULTS, *fine], playing.generate(prompts(rows), 0), strict=True))
        noted = playing.measured()
        right = playing.generate(prompts(rows)[-1:], 0)
        pids = [pid for pool in playing.host.pools for pid in pool.pids]
    for how, fault in FAULTS.items():
        assert {each.ended for each in groups[how].completions} == {"fault"}
        assert all(each.fault.startswith(f"environment: {fault}") for each in groups[how].completions), how
    assert noted["environment/faults"] == SIZE * len(FAULTS) + sum(
        each.fault is not None for how in fine for each in groups[how].completions
    )
    assert everything(right) == everything([groups[None]])
    assert {each.outcome for how in ("junk", None) for each in groups[how].completions} == {0.5}
    assert {each.outcome for each in groups["posts"].completions} == {0.25}
    assert {(each.fault, each.outcome) for each in groups["many"].completions} == {(None, None)}
    assert [each.ended for each in groups["many"].completions].count("turns") == SIZE
    assert len(groups["many"].completions) == SIZE * 6
    assert noted["turns/max"] == 6.0  # of an episode, whose calls are rows of their own here
    assert all("tokens, and at most" in each.fault for each in groups["long"].completions)
    assert all("got no answer" in each.fault for each in groups["long"].completions)
    assert all(each.fault.startswith("environment: exception: ") for each in groups["special"].completions)
    assert all("last refused call: the call cannot be read: " in each.fault for each in groups["unread"].completions)
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("deadly", True),
        ("deadly", False),
        ("early", True),
        ("forgetful", True),
    ],
)
def test_a_program_that_was_killed_runs_again_and_gets_the_answers_that_it_got(name, exact, tmp_path, monkeypatch):
    place = tmp_path / "died"
    monkeypatch.setenv("ONCURVE_DEADLY", str(place))
    given = [{}]
    settings = {"processes": 2, "env_pass": ("ONCURVE_DEADLY",), "exact": exact}
    groups = played(name, given, **settings)
    assert os.path.exists(place)
    faults = [each.fault for group in groups for each in group.completions if each.fault is not None]
    if name != "forgetful" and exact:
        assert everything(groups) == everything(played("deadly", given, **settings))
    else:
        assert faults  # of each row of the program that died, or of both where both did before one had left its mark
        assert all(("not go the same way" if exact else "exact = false") in fault for fault in faults)


def test_calls_at_the_same_time_are_answered_in_the_same_order_each_time():
    one, two = (played("together", [{}], together_seconds=0.5) for _ in range(2))
    assert everything(one) == everything(two)
    for group in one:
        assert len(group.completions) == SIZE * 5
        assert len({each.logprobs for each in group.completions}) > SIZE * 3  # the same call twice is sampled twice


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_calls_tools(stream):
    pytest.importorskip("openai")
    rows = [{"answer": "42", "stream": stream}]
    given = [Prompt(0, "19+23", (1, 2), rows[0])]
    with engine("with_client", Adder()) as playing:
        (group,) = sample(playing, given, 0, SIZE)
    for one in group.completions:
        assert (one.outcome, one.fault, one.ended) == (1.0, None, "eos")
        assert [turn.role for turn in one.turns if turn.text] == ["assistant", "tool", "assistant"]
        text = TOKENIZER.decode([*group.prompt.ids, *one.ids])
        assert text.count("[tools]") == 1
        assert text.endswith('"y": 23}}</tool_call><eos>\n<bos>[tool]42<eos>\n<bos>[assistant]42<eos>')


def test_an_agent_uses_tools_of_an_mcp_server():
    pytest.importorskip("agents")
    pytest.importorskip("mcp")
    given = [Prompt(0, "19+23", (1, 2), {"answer": "42"})]
    with engine("with_agents", Adder(), processes=2, timeout_seconds=120.0) as playing:
        (group,) = sample(playing, given, 0, SIZE)
    assert [(one.outcome, one.fault) for one in group.completions] == [(1.0, None)] * SIZE
    assert all(
        [turn.role for turn in one.turns if turn.text] == ["assistant", "tool", "assistant"]
        for one in group.completions
    )
