"""What is written survives: kills at any instant, flipped bytes, torn lines, full disks."""

import errno
import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from oncurve.base.errors import CheckpointError, LostFileError
from oncurve.durable import (
    AppendLog,
    DiskError,
    StorageError,
    discard,
    fetch,
    newest_valid,
    prune,
    read_json,
    read_log,
    read_tensors,
    store,
    sync_files,
    to_json,
    verify,
    write_directory,
    write_file,
)

KILLED_WRITERS = """
import os, pathlib, random, signal, sys, time
from oncurve.durable import newest_valid, numbered, prune, sweep, verify, write_directory

def write_forever(root, number, pipe):
    while True:
        number += 1
        write_directory(root / f"step-{number}", {"n": b"%d" % number, "deep/blob": bytes([number % 256]) * 100_000})
        os.write(pipe, b"%d " % number)
        prune(root, keep=2)

root = pathlib.Path(sys.argv[1])
choose = random.Random(0)
last = 0
for _ in range(25):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_forever(root, last, writer)
    os.close(writer)
    time.sleep(choose.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    confirmed = max([last, *map(int, os.read(reader, 1 << 16).split())])
    os.close(reader)
    newest, skipped = newest_valid(root)
    assert not skipped, skipped
    assert all(not verify(path) for _, path in numbered(root))
    last = int(newest.name[5:]) if newest else 0
    assert last >= confirmed, (last, confirmed)
sweep(root)
print(last, sorted(os.listdir(root)))
"""


def files() -> dict:
    return {
        "state.json": to_json({"step": 3, "b": 1}),
        "model/weights.safetensors": {"w": torch.arange(6.0).view(2, 3)},
    }


def test_a_written_directory_verifies_and_reads_back(tmp_path: Path) -> None:
    write_directory(tmp_path / "step-1", files())
    assert verify(tmp_path / "step-1") == []
    assert read_json(tmp_path / "step-1" / "state.json") == {"step": 3, "b": 1}
    tensors = read_tensors(tmp_path / "step-1" / "model" / "weights.safetensors")
    with safe_open(tmp_path / "step-1" / "model" / "weights.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers before 5 refuses weights that do not say so
    assert torch.equal(tensors["w"], torch.arange(6.0).view(2, 3))
    assert os.listdir(tmp_path) == ["step-1"]


def test_tied_strided_sliced_empty_scalar_and_bf16_tensors_are_kept(tmp_path: Path) -> None:
    base = torch.randn(4, 5)
    tensors = {
        "tied": base,
        "also": base,
        "strided": base.T,
        "slice": base[1:3],
        "half": base.bfloat16(),
        "none": torch.zeros(0, 3),
        "count": torch.tensor(7),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "flag": torch.tensor([True, False]),
    }
    write_directory(tmp_path / "d", {"t.safetensors": tensors})
    back = read_tensors(tmp_path / "d" / "t.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name
        assert back[name].dtype == tensor.dtype


@pytest.mark.parametrize("name", ["manifest.json", "../out", "/abs", "", "a/../../b"])
def test_names_outside_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        write_directory(tmp_path / "d", {name: b""})
    assert os.listdir(tmp_path) == []


def test_every_flipped_byte_of_every_file_is_found(tmp_path: Path) -> None:
    write_directory(tmp_path / "d", {"a": b"abc", "b.safetensors": {"w": torch.ones(1)}})
    for file in ("a", "b.safetensors", "manifest.json"):
        path = tmp_path / "d" / file
        original = path.read_bytes()
        for index in range(len(original)):
            path.write_bytes(original[:index] + bytes([original[index] ^ 1]) + original[index + 1 :])
            assert verify(tmp_path / "d"), (file, index)
        path.write_bytes(original)
    assert verify(tmp_path / "d") == []


def test_missing_truncated_and_extra_files(tmp_path: Path) -> None:
    write_directory(tmp_path / "d", {"a": b"abc", "b": b"abc"})
    (tmp_path / "d" / "extra").write_bytes(b"not ours")
    assert verify(tmp_path / "d") == []
    (tmp_path / "d" / "a").write_bytes(b"ab")
    (tmp_path / "d" / "b").unlink()
    assert verify(tmp_path / "d") == ["a has 2 bytes instead of 3", "b is missing"]
    (tmp_path / "d" / "manifest.json").unlink()
    assert verify(tmp_path / "d") == ["manifest.json is missing"]


def test_the_newest_valid_one_is_used_and_the_reason_for_the_skipped_is_told(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        write_directory(tmp_path / f"step-{step}", {"a": b"%d" % step})
    (tmp_path / "step-11" / "a").write_bytes(b"12")
    (tmp_path / "step-10" / "manifest.json").unlink()
    (tmp_path / "step-x").mkdir()
    newest = newest_valid(tmp_path)
    assert newest.path == tmp_path / "step-9"
    assert list(newest.skipped) == [tmp_path / "step-11", tmp_path / "step-10"]
    assert "sha256" in newest.skipped[tmp_path / "step-11"][0]
    assert newest_valid(tmp_path / "absent") == (None, {})


def test_prune_keeps_the_newest_intact_ones_and_clears_leftovers(tmp_path: Path) -> None:
    for step in range(1, 6):
        write_directory(tmp_path / f"step-{step}", {"a": b"%d" % step})
    (tmp_path / "step-5" / "a").write_bytes(b"torn!")
    (tmp_path / ".tmp-step-6-1-0123abcd").mkdir()
    (tmp_path / ".tmp-file-12-0123abcd").write_bytes(b"")
    (tmp_path / "frozen").mkdir()
    removed = prune(tmp_path, keep=2)
    assert sorted(path.name for path in removed) == ["step-1", "step-2"]
    assert sorted(os.listdir(tmp_path)) == ["frozen", "step-3", "step-4", "step-5"]
    with pytest.raises(ValueError, match="at least 1"):
        prune(tmp_path, keep=0)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError):
        read_tensors(tmp_path / "w.safetensors")


def test_frozen_tensors_are_stored_once_by_hash_and_checked_when_read(tmp_path: Path) -> None:
    name = store(tmp_path / "frozen", {"w": torch.ones(3), "v": torch.zeros(2)})
    written = (tmp_path / "frozen" / name).stat().st_mtime_ns
    assert store(tmp_path / "frozen", {"v": torch.zeros(2), "w": torch.ones(3)}) == name
    assert (tmp_path / "frozen" / name).stat().st_mtime_ns == written
    assert os.listdir(tmp_path / "frozen") == [name]
    assert torch.equal(fetch(tmp_path / "frozen", name)["w"], torch.ones(3))
    content = bytearray((tmp_path / "frozen" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / "frozen" / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="sha256"):
        fetch(tmp_path / "frozen", name)
    assert store(tmp_path / "frozen", {"w": torch.ones(3), "v": torch.zeros(2)}) == name
    assert fetch(tmp_path / "frozen", name).keys() == {"w", "v"}


def test_non_finite_numbers_are_never_stored(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"loss": float("nan")})
    with AppendLog(tmp_path / "log") as log, pytest.raises(ValueError, match="not JSON compliant"):
        log.append({"loss": float("inf")})


def test_a_log_is_cut_back_to_the_offset_of_the_checkpoint(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "deep" / "log.jsonl") as log:
        offset = log.append({"step": 1, "text": "ünï\n"})
        assert log.append({"step": 2}) == log.offset > offset
        log.sync()
    with AppendLog(tmp_path / "deep" / "log.jsonl", offset=offset) as log:
        log.append({"b": 1, "a": 2})
    assert read_log(tmp_path / "deep" / "log.jsonl") == [{"step": 1, "text": "ünï\n"}, {"b": 1, "a": 2}]
    with pytest.raises(CheckpointError, match="were written before the checkpoint"):
        AppendLog(tmp_path / "deep" / "log.jsonl", offset=10_000)


def test_a_torn_last_line_is_cut_off_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    assert read_log(path) == [{"a": 1}]
    with AppendLog(path) as log:
        log.append({"a": 3})
    assert read_log(path) == [{"a": 1}, {"a": 3}]
    path.write_bytes(b"x" * 3_000_000)
    assert AppendLog(path).offset == 0


def test_killed_at_random_instants_it_never_leaves_an_unreadable_newest(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", KILLED_WRITERS, str(tmp_path)]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[0]) > 5
    assert all(name.startswith("step-") for name in os.listdir(tmp_path))


def test_a_full_disk_is_told_in_plain_words_and_leaves_the_earlier_state(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root; the limit on file sizes is tested below")
    try:
        write_directory(small / "step-1", {"a": b"x" * 1000})
        with AppendLog(small / "log") as log:
            offset = log.append({"a": 1})
            with pytest.raises(
                StorageError, match=r"step-2 cannot be written: No space left.*\(1\.0 MB needed, 0\.5 MB"
            ):
                write_directory(small / "step-2", {"a": b"x" * 1_000_000})
            with pytest.raises(StorageError, match="No space left"):
                store(small / "frozen", {"w": torch.zeros(1_000_000)})
            with pytest.raises(DiskError, match="No space left"):
                write_file(small / "plain", b"x" * 1_000_000)
            assert log.offset == offset
            fill(small / "junk")
            lines = [{"a": number, "b": "x" * 3000} for number in range(2, 9)]
            for line in lines:
                log.append(line)  # some fit into the block that has begun, the others wait
            assert log.refused is not None
            with pytest.raises(DiskError, match="log cannot be written: No space left"):
                log.sync()
            known = read_log(small / "log")
            assert known == [{"a": 1}, *lines][: len(known)]
            assert (small / "log").read_bytes().endswith(b"\n")
            (small / "junk").unlink()
            log.append({"a": 9})
            assert log.refused is None
            assert log.offset == (small / "log").stat().st_size
        assert newest_valid(small).path == small / "step-1"
        assert read_log(small / "log") == [{"a": 1}, *lines, {"a": 9}]
        assert sorted(os.listdir(small)) == ["frozen", "log", "step-1"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def fill(path: Path) -> None:
    """Take all space that is left, by a file."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_lines_that_the_disk_lost_after_it_had_taken_them_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As a network file system does, which says only at the end that there is no space."""
    lines = [{"a": number} for number in range(5)]
    path, lost = tmp_path / "log", True
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if lost:
            os.ftruncate(descriptor, kept)
            raise OSError(code, os.strerror(code))
        real(descriptor)

    with AppendLog(path) as log:
        log.append(lines[0])
        log.sync()
        kept = log.offset
        monkeypatch.setattr(os, "fsync", fsync)
        for line in lines[1:4]:
            log.append(line)
            with pytest.raises(DiskError, match=os.strerror(code)):
                log.sync()
        lost = False
        log.append(lines[4])
    assert read_log(path) == lines


@pytest.mark.parametrize("lost", ["deleted", "moved", "replaced", "its folder moved"])
def test_a_log_that_is_no_longer_at_its_path_is_an_error_and_is_not_made_again(tmp_path: Path, lost: str) -> None:
    path = tmp_path / "run/log"
    with AppendLog(path) as log:
        log.append({"step": 7})
        if lost == "its folder moved":
            path.parent.rename(tmp_path / "there")
        else:
            path.rename(tmp_path / "elsewhere")
        if lost == "replaced":
            path.write_bytes(b"mine")
        with pytest.raises(LostFileError, match="after step 7 was written"):
            log.append({"step": 8})
    assert not path.exists() or path.read_bytes() == b"mine"


def test_a_write_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    write_directory(tmp_path / "step-1", {"a": b"1"})
    write_file(tmp_path / "plain", b"before")
    with AppendLog(tmp_path / "log") as log:
        log.append({"a": 1})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(StorageError, match=r"File too large.*ulimit -f.*resume"):
                write_directory(tmp_path / "step-2", {"small": b"ok", "w.safetensors": {"w": torch.zeros(100_000)}})
            with pytest.raises(StorageError, match="intact"):
                write_file(tmp_path / "plain", b"x" * 100_000)
            with pytest.raises(StorageError):
                log.append({"a": "x" * 100_000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.append({"a": 2})
    assert sorted(os.listdir(tmp_path)) == ["log", "plain", "step-1"]
    assert (tmp_path / "plain").read_bytes() == b"before"
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == [{"a": 1}, {"a": 2}]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_directory(tmp_path / name, files() if name == "a" else dict(reversed(files().items())))
    for file in ("manifest.json", "state.json", "model/weights.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    write_directory(tmp_path / "d", files())
    write_file(tmp_path / "plain", b"x")
    (tmp_path / "reference").write_bytes(b"x")
    expected = (tmp_path / "reference").stat().st_mode
    for file in ("d/state.json", "d/model/weights.safetensors", "d/manifest.json", "plain"):
        assert (tmp_path / file).stat().st_mode == expected


def test_writing_over_a_directory_replaces_it_whole(tmp_path: Path) -> None:
    write_directory(tmp_path / "d", {"a": b"1", "gone": b"2"})
    write_directory(tmp_path / "d", {"a": b"3"})
    assert sorted(os.listdir(tmp_path / "d")) == ["a", "manifest.json"]
    assert os.listdir(tmp_path) == ["d"]


def test_frozen_tensors_that_no_record_names_are_discarded(tmp_path: Path) -> None:
    frozen = tmp_path / "frozen"
    assert discard(frozen, []) == []
    one, two, three = (store(frozen, {"w": torch.full((3,), float(value))}) for value in range(3))
    (frozen / ".tmp-frozen-1-0123abcd").write_bytes(b"half")
    assert discard(frozen, [to_json({"reference": one}), b"damaged " + two.encode()]) == [frozen / three]
    assert sorted(os.listdir(frozen)) == sorted([one, two])


@pytest.mark.parametrize("text", ["half \ud83d", "\udc00", "\ud83d\n\\ud83d", "\U0001f600 \ude00"])
def test_half_a_character_is_stored_and_read_back(tmp_path: Path, text: str) -> None:
    record = {"text": text, text: [{"deep": text}], "step": 1}
    with AppendLog(tmp_path / "log") as log:
        offset = log.append(record)
        assert log.append({"step": 2}) == offset + len(b'{"step": 2}\n')
    assert read_log(tmp_path / "log") == [record, {"step": 2}]
    (tmp_path / "log").read_bytes().decode()  # UTF-8 as any tool reads it
    write_file(tmp_path / "file", to_json(record))
    assert read_json(tmp_path / "file") == record


def test_an_error_that_does_not_pass_is_no_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with AppendLog(tmp_path / "log") as log:
        log.append({"a": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            with pytest.raises(StorageError, match="Read-only") as caught:
                log.append({"a": 2})
        assert not isinstance(caught.value, DiskError)
        log.append({"a": 3})
    assert read_log(tmp_path / "log") == [{"a": 1}, {"a": 3}]


def test_a_log_that_is_a_hard_link_is_continued_as_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"{}\n{}\n")
    os.link(tmp_path / "theirs", tmp_path / "log")
    with AppendLog(tmp_path / "log", offset=3) as log:
        log.append({"step": 1})
    assert (tmp_path / "theirs").read_bytes() == b"{}\n{}\n"
    assert read_log(tmp_path / "log") == [{}, {"step": 1}]


def test_the_memory_of_a_log_is_bounded_while_the_disk_takes_it(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log") as log:
        for number in range(40):
            log.append({"a": number, "b": "x" * 100_000})
            assert len(log._tail) < 1_200_000
    assert [record["a"] for record in read_log(tmp_path / "log")] == list(range(40))


def test_a_file_that_waits_for_its_sync_is_whole_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    paths = [tmp_path / "kept" / name for name in ("one", "two", "removed")]
    for path in paths:
        write_file(path, b"before", sync=False)
        write_file(path, path.name.encode(), sync=False)
    assert [path.read_text() for path in paths] == ["one", "two", "removed"]
    assert sorted(os.listdir(tmp_path / "kept")) == ["one", "removed", "two"]
    assert synced == []
    paths[2].unlink()
    sync_files(paths)
    assert synced == ["one", "two", "kept"]
