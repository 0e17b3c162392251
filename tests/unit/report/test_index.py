"""Groups listed by an index and read alone, against reading the whole file; tokens' texts against the tokenizer."""

import gzip
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fakes.classifiers import byte_tokenizer
from fakes.tiny_policy import random_groups
from oncurve.report import TOKENS, Pieces, RolloutFiles, RolloutIndex, group_record, link, packed_tokens, rollouts
from oncurve.report.index import texts_of
from oncurve.report.rollouts import GROUPS, INDEX


def written(folder: Path, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The records of step 3, of which some have no valid reward, in gzip members of a few groups each."""
    chance = random.Random(seed)
    rewards = [[chance.choice([0.0, 1.0, 0.5, None]) for _ in range(4)] for _ in range(count)]
    groups = random_groups(count, seed=seed, rewards=rewards)
    records = [
        {"step": 3, "verifier": "exact", **group_record(group, [chance.gauss(0, 1) for _ in range(4)])}
        for group in groups
    ]
    for record in records:
        record["prompt"]["text"] = chance.choice(["é\ud800", "x" * 200, "</script>\n"])
        for item in record["completions"]:
            item["parts"] = {"exact": item["reward"], "form": 1.0}
            item["ended"] = chance.choice(["eos", "length"])
    RolloutFiles(folder).write(3, RolloutFiles.content(records))
    return records


def plain_row(record: dict[str, Any]) -> dict[str, Any]:
    """A row of a group, the slow way."""
    items = record["completions"]
    rewards = [item["reward"] for item in items if item["valid"]]
    advantages = [abs(item["advantage"]) for item in items if item["advantage"] is not None]
    return {
        "prompt_id": record["prompt"]["id"],
        "prompt": record["prompt"]["text"][:120].replace("\ud800", "?"),
        "mean": statistics.fmean(rewards) if rewards else None,
        "spread": None if not rewards else statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        "right": sum(reward == 1 for reward in rewards),
        "truncated": [item["ended"] for item in items].count("length"),
        "invalid": [item["valid"] for item in items].count(False),
        "largest": max(advantages, default=None),
        "length": sum(len(item["ids"]) for item in items) / len(items),
        "size": len(items),
    }


@pytest.mark.parametrize("block", [1, 3000, 1 << 30])
def test_rows_and_single_groups_are_those_of_the_whole_file(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "BLOCK_BYTES", block)
    records = written(tmp_path, 40)
    whole = gzip.decompress(RolloutFiles(tmp_path).path(3).read_bytes())
    lines = [json.loads(line) for line in whole.splitlines()]
    index = RolloutIndex(tmp_path)
    assert index.steps() == (3,)
    for number, (row, record, line) in enumerate(zip(index.rows(3), records, lines, strict=True)):
        assert {key: row[key] for key in plain_row(record)} == pytest.approx(plain_row(record))
        assert row["group"] == number
        member = RolloutFiles(tmp_path).path(3).read_bytes()[row["offset"] : row["offset"] + row["bytes"]]
        assert json.loads(gzip.decompress(member).splitlines()[row["line"]]) == line
        group = index.group(3, number)
        assert group["completions"][0].pop("advantages", None) in (
            None,
            [line["completions"][0]["advantage"]] * len(line["completions"][0]["ids"]),
        )
        assert group["completions"][0] == line["completions"][0]
    assert [{**line, "group": number} for number, line in enumerate(lines)] == list(index.groups(3))
    assert index.rows(3, [7, 2]) == [index.rows(3)[7], index.rows(3)[2]]
    assert index.prompt(5) == [(3, row["group"]) for row in index.rows(3) if row["prompt_id"] == 5]
    for number in (-1, 40):
        with pytest.raises(KeyError):
            index.group(3, number)
    assert index.rows(4) == list(index.groups(4)) == []


@pytest.mark.parametrize("harm", ["missing", "empty", "flipped", "of another file", "of something else"])
def test_a_lost_or_damaged_index_is_made_again_and_written(tmp_path: Path, harm: str) -> None:
    written(tmp_path, 20, seed=1)
    index_file = RolloutFiles(tmp_path).path(3, INDEX)
    other = index_file.read_bytes()
    written(tmp_path, 30)
    content, rows = index_file.read_bytes(), RolloutIndex(tmp_path).rows(3)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 64
    harmed = {
        "empty": b"",
        "flipped": bytes(flipped),
        "of another file": other,
        "of something else": gzip.compress(b"[]"),
    }
    index_file.unlink()
    if harm in harmed:
        index_file.write_bytes(harmed[harm])
    assert RolloutIndex(tmp_path).rows(3) == rows
    assert index_file.read_bytes() == content


def test_a_file_that_was_cut_is_named_whenever_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, 20)
    path = RolloutFiles(tmp_path).path(3)
    path.write_bytes(path.read_bytes()[:-20])
    for _ in range(2):
        assert 0 < len(RolloutIndex(tmp_path).rows(3)) < 20
        assert f"{path} is damaged, " in capsys.readouterr().err


@pytest.mark.parametrize("with_index", [True, False])
def test_a_damaged_member_costs_its_own_groups_and_without_an_index_those_after_it(
    tmp_path: Path, with_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "BLOCK_BYTES", 3000)
    records = written(tmp_path, 40)
    rows = RolloutIndex(tmp_path).rows(3)
    offsets = sorted({row["offset"] for row in rows})
    path = RolloutFiles(tmp_path).path(3)
    content = bytearray(path.read_bytes())
    content[offsets[3] + 1] ^= 255  # the member's head
    path.write_bytes(content)
    if not with_index:
        RolloutFiles(tmp_path).path(3, INDEX).unlink()
    lost = [
        row["group"] for row in rows if (row["offset"] == offsets[3] if with_index else row["offset"] >= offsets[3])
    ]
    left = [number for number in range(len(records)) if number not in lost]
    index = RolloutIndex(tmp_path)
    assert [group["group"] for group in index.groups(3)] == left
    assert index.group(3, left[-1])["prompt"]["id"] == records[left[-1]]["prompt"]["id"]
    with pytest.raises(KeyError):
        index.group(3, lost[0])


def test_numbers_of_tokens_reach_the_tokens_they_are_of(tmp_path: Path) -> None:
    records = written(tmp_path, 5)
    ids = [[token for item in record["completions"] for token in item["ids"]] for record in records]
    ends = np.cumsum([len(each) for each in ids]).tolist()
    after = np.arange(ends[-1], dtype="f4")
    after[ends[0]] = math.nan
    texts = {str(token): f"<{token}>" for each in ids for token in each}
    RolloutFiles(tmp_path).write(3, {TOKENS: packed_tokens(ends, texts, {"after": after})})
    index, expected = RolloutIndex(tmp_path), iter(range(ends[-1]))
    for number in range(5):
        for item in index.group(3, number)["completions"]:
            wanted = [None if token == ends[0] else token for token in (next(expected) for _ in item["ids"])]
            assert item["after"] == wanted
            assert item["pieces"] == [f"<{token}>" for token in item["ids"]]
    RolloutFiles(tmp_path).path(3, TOKENS).write_bytes(b"damaged")
    assert "after" not in index.group(3, 0)["completions"][0]


def marked_words() -> PreTrainedTokenizerFast:
    """Words with a mark at their start, and bytes for what is no word."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *map("▁".__add__, ["the", "cat", ""]), "s"]
    inner = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), marked_words()], ids=["bytes", "words"])
def test_texts_of_tokens_join_to_the_text_and_special_tokens_have_their_names(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    chance = random.Random(0)
    texts = ["".join(chance.choices("aé世🙂 s\n<", k=30)) for _ in range(50)]
    if "▁the" in tokenizer.get_vocab():
        vocabulary = tokenizer.get_vocab()
        of_bytes = lambda text: [vocabulary[f"<0x{byte:02X}>"] for byte in text.encode()]  # noqa: E731
        completions = [[vocabulary["▁the"], *of_bytes(text), vocabulary["▁cat"], vocabulary["s"]] for text in texts]
        texts = [f" the{text} cats" for text in texts]
    else:
        completions = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    eos = tokenizer.eos_token_id
    found = Pieces(tokenizer.decode).of([*((*ids, eos) for ids in completions), completions[0][:1] * 9])
    for ids, text in zip(completions, texts, strict=True):
        pieces = texts_of([*ids, eos], found)
        assert "".join(pieces) == text + tokenizer.eos_token
        assert len(pieces) == len(ids) + 1
    cut = tokenizer.encode("🙂", add_special_tokens=False)[-4:-1]  # ends within a character
    assert texts_of(cut, Pieces(tokenizer.decode).of([cut])) == ["", "", ""]


def test_links_name_a_place_as_far_as_it_is_given() -> None:
    assert link("a/b ü#", 40, 3, 0, 17) == "#/a%2Fb%20%C3%BC%23/40/3/0/17"
    assert link("run", 40, None) == "#/run/40"


def test_a_reader_of_groups_needs_no_torch(tmp_path: Path) -> None:
    written(tmp_path, 3)
    RolloutFiles(tmp_path).path(3, INDEX).unlink()
    code = (
        "import sys, pathlib; from oncurve.report import RolloutIndex, link, look_at, read_run\n"
        "index = RolloutIndex(pathlib.Path(sys.argv[1])); index.group(3, len(index.rows(3)) - 1)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
    assert RolloutFiles(tmp_path).path(3, INDEX).exists()
    assert RolloutFiles(tmp_path).path(3, GROUPS).exists()
