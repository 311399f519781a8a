"""Finds stored sessions: beside an index, in an archive beside one, or in the public repositories that have them.

`corpus_index.jsonl` names each session's repository and its file there, by commit and by the id of its content, and the
digest that it has after it was masked.
"""

import json
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from corpus_masks import mask
from quire.importers.readers import import_zstd

INDEX = Path(__file__).with_name("corpus_index.jsonl")
ARCHIVE_NAME = "sessions.tar.zst"
ROOT = Path(__file__).parents[1]
BESIDE = tuple(ROOT.parent / "shared" / "bench" / name for name in ("compactions", "sessions"))
"""Where a corpus beside the checkout is."""
FETCHED_AT_ONCE = 50


class StoredFile(NamedTuple):
    folder: Path
    """Folder of the index that names the file."""
    name: str
    program: str


def find_beside() -> list[Path]:
    return [folder for folder in BESIDE if (folder / "index.jsonl").is_file()]


def list_files(folders: Iterable[Path], programs: Sequence[str]) -> list[StoredFile]:
    """The sessions that the indexes below the folders name and that are there, by program."""
    found: dict[str, StoredFile] = {}
    for index in (index for folder in folders for index in sorted(folder.rglob("index.jsonl"))):
        has_archive = index.with_name(ARCHIVE_NAME).is_file()
        for line in index.read_text().splitlines():
            entry = json.loads(line)
            if has_archive or index.with_name(entry["file"]).is_file():
                found.setdefault(entry["file"], StoredFile(index.parent, entry["file"], entry["program"]))
    known = [each for each in found.values() if each.program in programs]
    return sorted(known, key=lambda each: (programs.index(each.program), str(each.folder), each.name))


def unpack(files: Sequence[StoredFile], target: Path) -> dict[str, Path]:
    """The path of each session, after what is only in an archive was unpacked."""
    paths = {each.name: each.folder / each.name for each in files}
    missing: defaultdict[Path, set[str]] = defaultdict(set)
    for each in files:
        if not paths[each.name].is_file():
            missing[each.folder / ARCHIVE_NAME].add(each.name)
    for archive, names in missing.items():
        with _open_archive(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                name = Path(member.name).name
                if name in names and (content := members.extractfile(member)) is not None:
                    paths[name] = target / name
                    paths[name].write_bytes(content.read())
    return paths


@contextmanager
def _open_archive(path: Path) -> Iterator[IO[bytes]]:
    try:
        with subprocess.Popen(["zstd", "-dc", "--long=27", str(path)], stdout=subprocess.PIPE) as process:
            yield cast("IO[bytes]", process.stdout)
            # What follows the last wanted file is not read.
            process.kill()
    except FileNotFoundError:
        with import_zstd().open(path, "rb") as stream:
            yield cast("IO[bytes]", stream)


def fetch(folder: Path, remote: str, index: Path = INDEX) -> tuple[int, list[str]]:
    """Gets the sessions of the index from their repositories below `remote`, and masks them.

    Returns how many have the digest that the index names, and the names of the others.
    """
    by_repository: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in index.read_text().splitlines():
        entry = json.loads(line)
        by_repository[entry["repo"]].append(entry)
    equal, others = 0, list[str]()
    for repository, entries in by_repository.items():
        with tempfile.TemporaryDirectory(prefix="quire-corpus-fetch-") as scratch:
            contents = _fetch_blobs(Path(scratch), f"{remote}/{repository}.git", [each["blob"] for each in entries])
        for entry in entries:
            data = contents.get(entry["blob"])
            if data is None:
                others.append(f"{entry['file']}: not found in {repository}")
                continue
            masked = mask(data)
            is_equal = sha256(masked).hexdigest() == entry["sha256"]
            equal += is_equal
            if not is_equal:
                others.append(f"{entry['file']}: another digest after it was masked")
            target = folder / entry["set"] / entry["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(masked)
            with target.with_name("index.jsonl").open("a") as stream:
                stream.write(json.dumps({name: entry[name] for name in ("file", "program")}) + "\n")
    return equal, others


def _fetch_blobs(scratch: Path, url: str, blobs: Sequence[str]) -> dict[str, bytes]:
    """The content of files of a repository by their ids: version 2 of Git's protocol sends any object by its id."""

    def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-C", str(scratch), *arguments], capture_output=True, check=False)

    git("init", "--quiet", "--bare")
    git("remote", "add", "origin", url)
    for start in range(0, len(blobs), FETCHED_AT_ONCE):
        part = blobs[start : start + FETCHED_AT_ONCE]
        options = ("-c", "protocol.version=2", "fetch", "--quiet", "--no-tags", "--depth", "1", "origin")
        if git(*options, *part).returncode:
            # One id that is gone ends the whole request.
            for blob in part:
                git(*options, blob)
    read = {blob: git("cat-file", "blob", blob) for blob in blobs}
    return {blob: done.stdout for blob, done in read.items() if not done.returncode}
