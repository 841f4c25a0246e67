"""What a killed build has done already is found again; what is not the same work is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpr.disk import Bytes, Disk
from bpr.errors import InvalidInput, StorageError
from bpr.parts import KEY_BYTES, Parts

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "a.bpr")


def test_what_was_put_is_found_under_its_number_and_key(parts: Parts, tmp_path: Path) -> None:
    assert parts.get(0, KEY, 5) is None
    parts.put(0, KEY, b"bytes")
    parts.put(7, OTHER, b"")
    again = Parts(tmp_path / "a.bpr")
    assert again.get(0, KEY, 5) == b"bytes"
    assert again.get(7, OTHER, 0) == b""
    assert again.get(0, OTHER, 5) is None
    assert again.get(1, KEY, 5) is None
    assert again.get(0, KEY, 4) is None
    parts.put(0, OTHER, b"other")
    assert again.get(0, KEY, 5) is None
    assert again.get(0, OTHER, 5) == b"other"


def test_every_changed_byte_and_every_cut_makes_it_unfound(parts: Parts) -> None:
    parts.put(0, KEY, b"some bytes")
    (file,) = parts.folder.iterdir()
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert parts.get(0, KEY, 10) is None
        file.write_bytes(whole[:at])
        assert parts.get(0, KEY, 10) is None
    file.write_bytes(whole)
    assert parts.get(0, KEY, 10) == b"some bytes"


def test_what_a_kill_left_is_replaced(parts: Parts) -> None:
    parts.put(0, KEY, b"bytes")
    (parts.folder / "part-00000001.new").write_bytes(b"half")
    parts.put(1, KEY, b"bytes")
    assert parts.get(1, KEY, 5) == b"bytes"


def test_removing_leaves_what_is_not_ours(parts: Parts) -> None:
    parts.remove()
    parts.put(0, KEY, b"bytes")
    parts.remove()
    assert not parts.folder.exists()
    parts.put(0, KEY, b"bytes")
    (parts.folder / "diary.txt").write_text("mine")
    parts.remove()
    assert [each.name for each in parts.folder.iterdir()] == ["diary.txt"]


def test_links_are_not_followed(parts: Parts, tmp_path: Path) -> None:
    parts.put(0, KEY, b"bytes")
    (parts.folder / "part-00000000").rename(tmp_path / "elsewhere")
    (parts.folder / "part-00000000").symlink_to(tmp_path / "elsewhere")
    assert parts.get(0, KEY, 5) is None


def test_a_file_in_the_way(parts: Parts) -> None:
    parts.folder.write_text("mine")
    assert parts.get(0, KEY, 5) is None
    with pytest.raises(InvalidInput, match="is in the way"):
        parts.put(0, KEY, b"bytes")
    parts.remove()
    assert parts.folder.read_text() == "mine"


@pytest.mark.parametrize("before", [0, 1])
def test_a_full_disk_leaves_no_half_of_a_part(parts: Parts, before: int) -> None:
    class Full(Disk):
        def write(self, descriptor: int, path: Path, data: Bytes) -> int:
            raise StorageError("no space")

    for number in range(before):
        parts.put(number, KEY, b"whole")
    with pytest.raises(StorageError, match="no space"):
        Parts(parts.folder.with_suffix(""), Full()).put(7, KEY, b"bytes")
    assert parts.folder.exists() == bool(before)
    assert parts.get(0, KEY, 5) == (b"whole" if before else None)
    assert not before or [each.name for each in parts.folder.iterdir()] == ["part-00000000"]
