"""Archives of exports: members by name, and bounds for archives that unpack to more than they should."""

import re
import struct
import zipfile
from pathlib import Path

import pytest

from infra.export_samples import make_chatgpt_conversation, make_chatgpt_message, read_source, write_zip
from quire.importers import exports
from quire.importers.chatgpt import ChatGptSource
from quire.importers.exports import AttachmentReader, ExportFiles

PATTERN = re.compile(r"conversations.*\.json")
CONVERSATION = make_chatgpt_conversation("c", {"q": (None, make_chatgpt_message("user", "Hello"))})


def read_members(path: Path) -> dict[str, bytes]:
    with ExportFiles(path) as files:
        return {name: stream.read() for name, stream in files.iter_members(PATTERN)}


def test_only_members_with_a_matching_name_are_opened(tmp_path: Path):
    path = write_zip(
        tmp_path / "e.zip", {"a/../conversations.json": b"[]", "/etc/conversations-2.json": b"{}", "x.json": b"1"}
    )
    assert read_members(path) == {"conversations.json": b"[]", "conversations-2.json": b"{}"}


def refuse(path: Path) -> str:
    read = read_source(ChatGptSource(), path)
    assert read.conversations == []
    (error,) = read.errors
    return error.reason


def test_a_member_with_an_absurd_ratio_is_refused(tmp_path: Path):
    path = write_zip(tmp_path / "bomb.zip", {"conversations.json": b"[" + b" " * 50_000_000 + b"]"})
    assert path.stat().st_size < 100_000
    assert "unpacks to more than 200 times its size" in refuse(path)


def test_all_members_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "MAX_UNPACKED_BYTES", 1_000)
    path = write_zip(tmp_path / "e.zip", {f"conversations-{n}.json": b"[" + b" " * 300 + b"]" for n in range(5)})
    assert "unpacks to more than 1,000 bytes" in refuse(path)


def test_a_size_that_is_not_true_is_an_error(tmp_path: Path):
    """The directory says that a member has 30 bytes; it has fifty million."""
    path = write_zip(tmp_path / "liar.zip", {"conversations.json": b"[" + b" " * 50_000_000 + b"]"})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 30)
    path.write_bytes(data)
    assert read_source(ChatGptSource(), path).conversations == []
    assert len(read_source(ChatGptSource(), path).errors) == 1


def test_a_directory_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "MAX_DIRECTORY_BYTES", 100_000)
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(3_000):
            archive.writestr(f"{number}.json", b"")
    assert "the directory of the archive has more than 100,000 bytes" in refuse(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(tmp_path: Path, method: int):
    path = tmp_path / "e.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("conversations.json", "[]")
    assert "a method that is not supported" in refuse(path)


def test_an_encrypted_archive_is_refused(tmp_path: Path):
    path = write_zip(tmp_path / "e.zip", {"conversations.json": b"[]"})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.rindex(signature) + offset
        data[at] |= 1
    path.write_bytes(data)
    assert "encrypted" in refuse(path)


def test_a_damaged_archive_is_refused(tmp_path: Path):
    path = write_zip(tmp_path / "e.zip", {"conversations.json": [CONVERSATION] * 1_000})
    path.write_bytes(path.read_bytes()[:-100])
    assert refuse(path).startswith("The file cannot be read: ")


def test_damage_in_a_member_ends_the_reading_of_the_archive(tmp_path: Path):
    path = write_zip(tmp_path / "e.zip", {"conversations.json": [CONVERSATION] * 1_000})
    data = bytearray(path.read_bytes())
    data[100:110] = b"\xff" * 10
    path.write_bytes(data)
    assert read_source(ChatGptSource(), path).errors[-1].reason.startswith("The file cannot be read: ")


def test_an_archive_without_conversations_is_an_error(tmp_path: Path):
    path = write_zip(tmp_path / "e.zip", {"user.json": [{"id": "me"}]})
    assert refuse(path) == "The archive has no conversations of this program."


def test_attachments_past_a_limit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "MAX_ATTACHMENT_BYTES", 100)
    monkeypatch.setattr(exports, "MAX_CONVERSATION_BYTES", 150)
    files: dict[str, bytes | str | list[object]] = {f"file-{n}.bin": b"x" * 90 for n in range(3)}
    with ExportFiles(write_zip(tmp_path / "e.zip", {**files, "file-big.bin": b"x" * 101})) as export:
        reader = AttachmentReader(export)
        read = [reader.read(f"file-{n}") for n in ("big", 0, 1, 2)]
    assert [len(data) if data else None for data in read] == [None, 90, 90, None]


def test_attachments_of_an_unpacked_export_are_found_beside_it(tmp_path: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/file-abc-name.png").write_bytes(b"png")
    (tmp_path / "secret").write_bytes(b"no")
    (tmp_path / "file-link.png").symlink_to(tmp_path / "secret")
    (tmp_path / "conversations.json").write_text("[]")
    with ExportFiles(tmp_path / "conversations.json") as export:
        assert export.read_asset("file-abc") == b"png"
        assert export.read_asset("file-link") is None
        assert export.read_asset("file-none") is None
