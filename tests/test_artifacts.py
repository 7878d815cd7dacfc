"""Files that stages exchange: whole or not at all, built by one process, locked against a second."""

from pathlib import Path

import pytest

from ectype.artifacts import build_once, lock, read_json, replacing, write_bytes_atomic
from ectype.errors import EctypeError

BUSY = EctypeError("in use", "one at a time", "wait")


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes_atomic(path, b"old")

    def write_half(target: Path) -> None:
        with replacing(target) as temporary:
            temporary.write_bytes(b"half")
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the body's own error
        write_half(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_held_lock_refuses_a_second_holder_and_ends_with_its_block(tmp_path: Path) -> None:
    for path in (tmp_path / "file", tmp_path):
        with lock(path, BUSY), pytest.raises(EctypeError, match="in use"), lock(path, BUSY):
            pass
        with lock(path, BUSY):
            pass


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_there_is_not_built_again(tmp_path: Path, kind: str) -> None:
    built = []

    def build(path: Path) -> None:
        built.append(path)
        if kind == "folder":
            path.mkdir()
            path = path / "part"
        path.write_bytes(b"whole")

    target = tmp_path / "cache" / "x.bin"
    build_once(target, build)
    build_once(target, build)
    assert len(built) == 1
    assert sorted(path.name for path in target.parent.iterdir()) == ["x.bin", "x.lock"]


def test_a_failed_build_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.mkdir()
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - the body's own error
        build_once(tmp_path / "x", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", b"\xff", "1" * 5000, ""])
def test_json_from_outside_ends_in_one_clear_error(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(EctypeError, match=r"thing: .*a\.json"):
        read_json(path, "thing")
