import pytest
import torch

from fakes import tables
from fakes.scripted import ByteTokenizer, ScriptedModel, TableModel
from fakes.tolerance import about
from oncurve.base.errors import DataError, ModelError
from oncurve.models import LocalWeights
from oncurve.models.generic import GenericModel
from oncurve.rollout import InProcessEngine, Sampling
from oncurve.types import Prompt
from oracles import plain_rollout

VOCABULARY = 9
EOS = (3, 7)


def table(seed=0, vocabulary=VOCABULARY, scale=1.5):
    return (
        torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    )


def make_engine(model=None, sampling=None, tokenizer=None, eos_ids=EOS, seed=5, version=0):
    sampling = sampling or Sampling(group_size=4, max_new_tokens=12)
    engine = InProcessEngine(sampling, tokenizer, eos_ids, seed)
    engine.follow(LocalWeights(model or TableModel(table()), version))
    return engine


def make_prompts(*ids):
    return [Prompt(id=number, text=str(number), ids=(number % VOCABULARY, (number * 5) % VOCABULARY)) for number in ids]


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0])
def test_every_token_is_what_a_plain_loop_draws(temperature):
    sampling = Sampling(group_size=8, max_new_tokens=6, temperature=temperature)
    prompts = make_prompts(4, 2, 11, 30)
    groups = make_engine(sampling=sampling).generate(prompts, draw=9)
    endings = set()
    for prompt, group in zip(prompts, groups, strict=True):
        for index, completion in enumerate(group.completions):
            key = (5, 9, prompt.id, index)
            expected = plain_rollout.complete(table().tolist(), prompt.ids[-1], key, set(EOS), 6, temperature)
            assert (list(completion.ids), completion.ended) == (expected[0], expected[2])
            assert completion.logprobs == about(expected[1])
            endings.add(completion.ended)
    assert temperature == 0 or endings == {"eos", "length"}


def test_prompts_are_computed_once_a_group_and_finished_rows_leave_the_batch():
    model = TableModel(table())
    groups = make_engine(model, Sampling(group_size=16, max_new_tokens=12)).generate(make_prompts(0, 1, 2), draw=0)
    assert model.prefilled == [3]
    lengths = torch.tensor([len(completion.ids) for group in groups for completion in group.completions])
    growing = [int((lengths > t).sum()) for t in range(1, 12)]  # rows that a decoder has to compute at step t
    assert len(model.stepped) == len([count for count in growing if count])
    assert all(count <= rows <= count / 0.875 + 1 for count, rows in zip(growing, model.stepped, strict=False))


def test_the_ending_token_is_in_the_ids_and_not_in_the_text():
    tokenizer = ByteTokenizer()
    hello = list(b"hello")
    scripts = [[*hello, tokenizer.eos_id], [*hello, ord("!")], [*hello, ord(".")]]
    engine = make_engine(
        ScriptedModel(scripts, 257), Sampling(group_size=1, max_new_tokens=6), tokenizer, (tokenizer.eos_id, ord("!"))
    )
    completions = [group.completions[0] for group in engine.generate(make_prompts(0, 1, 2), draw=0)]
    assert [completion.text for completion in completions] == ["hello", "hello", "hello."]
    assert [completion.ids for completion in completions] == [tuple(script) for script in scripts]


def test_a_stop_string_cuts_text_before_it_and_ids_after_the_token_that_completed_it():
    tokenizer = ByteTokenizer(["</ans", "wer>\n"])
    scripts = [[*b"4", 256, 257, *b"xyz"], [*b"4</answer", *b"? "], [*b"ab", tokenizer.eos_id, *b"</answer>"]]
    engine = make_engine(
        ScriptedModel(scripts, 259),
        Sampling(group_size=1, max_new_tokens=11, stop=("</answer>",)),
        tokenizer,
        (tokenizer.eos_id,),
    )
    stopped, long, ended = (group.completions[0] for group in engine.generate(make_prompts(0, 1, 2), draw=0))
    assert (stopped.ids, stopped.text, stopped.ended) == (tuple(scripts[0][:3]), "4", "stop")
    assert len(stopped.logprobs) == 3
    assert (long.ids, long.text, long.ended) == (tuple(scripts[1]), "4</answer? ", "length")
    assert (ended.ids, ended.text, ended.ended) == (tuple(scripts[2][:3]), "ab", "eos")


def test_a_prompt_too_long_for_the_model_is_refused_with_the_mend():
    with pytest.raises(
        DataError, match=r"prompt 0 .*2 tokens.*makes 14.*rows of at most 13: set rollout.max_new_tokens to 11"
    ):
        make_engine(TableModel(table(), longest_row=13)).generate(make_prompts(0), draw=0)
    with pytest.raises(DataError, match="shorten it"):
        make_engine(TableModel(table(), longest_row=2)).generate(make_prompts(0), draw=0)
    assert make_engine(TableModel(table(), longest_row=14)).generate(make_prompts(0), draw=0)


def test_logits_that_are_not_finite_are_an_error():
    broken = table()
    broken[:, 2] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        make_engine(TableModel(broken)).generate(make_prompts(0), draw=0)


@pytest.mark.parametrize("settings", tables.table("engine", "impossible"))
def test_impossible_sampling_settings_are_refused(settings):
    with pytest.raises(ValueError):
        Sampling(**settings)


def test_the_settings_eos_ids_are_added_to_the_models():
    sampling = Sampling(group_size=1, max_new_tokens=3, eos_ids=(5,))
    groups = make_engine(ScriptedModel([[1, 5, 1], [3, 1, 1]], VOCABULARY), sampling).generate(make_prompts(0, 1), 0)
    assert [group.completions[0].ids for group in groups] == [(1, 5), (3,)]


def test_what_a_finished_row_draws_is_not_judged():
    poisoned = table()
    poisoned[3] = torch.nan  # only an ended row ever looks behind an EOS
    groups = make_engine(TableModel(poisoned), eos_ids=(3,)).generate(make_prompts(*range(6)), draw=0)
    assert any(completion.ended == "eos" for group in groups for completion in group.completions)


def test_a_large_vocabulary_is_sampled_in_slices_with_the_same_result(monkeypatch):
    model = TableModel(table(vocabulary=300))
    prompts = make_prompts(0, 1, 2)
    whole = make_engine(model).generate(prompts, draw=0)
    monkeypatch.setattr("oncurve.models.decode.host_loop._LOGITS_AT_ONCE", 300 * 5)
    assert make_engine(model).generate(prompts, draw=0) == whole


def test_more_positions_than_one_block_of_uniforms():
    sampling = Sampling(group_size=2, max_new_tokens=150)
    group = make_engine(sampling=sampling, eos_ids=()).generate(make_prompts(4), draw=2)[0]
    for index, completion in enumerate(group.completions):
        expected = plain_rollout.complete(table().tolist(), group.prompt.ids[-1], (5, 2, 4, index), set(), 150, 1.0)
        assert list(completion.ids) == expected[0]


def test_a_rollout_leaves_the_module_able_to_learn():
    module = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 4), torch.nn.Linear(4, VOCABULARY))
    engine = make_engine(GenericModel(module))
    engine.generate(make_prompts(0, 1), draw=0)
    module(torch.tensor([[1, 2]])).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
