"""Imports stored sessions of coding agents, and compares what Quire then holds with what their files hold.

The folder, an argument or QUIRE_CORPUS, has sessions or an archive of them beside an `index.jsonl` that names the file
and the program of each. The readers `corpus_claude_code.py` and so on read the files without Quire.

    just corpus FOLDER                      all sessions, as a table
    just corpus FOLDER --only codex         those of one program, or with a text in their name
    just corpus FOLDER --details            each difference
    just corpus --fetch FOLDER              gets the sessions from their public repositories, and masks them
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corpus_claude_code import read_claude_code
from corpus_codex import read_codex
from corpus_compare import STRUCTURE, Difference, compare
from corpus_facts import Facts, Request, Tokens, read_lines
from corpus_files import StoredFile, fetch, find_beside, list_files, unpack
from corpus_gemini_cli import read_gemini_cli
from corpus_opencode import read_opencode
from corpus_pi import read_pi
from corpus_store import StoredSessions
from quire.db import migrate
from quire.engine import Engine
from quire.engine.config import EngineConfig
from quire.engine.file_import import ImportOptions, import_files
from quire.settings import Settings
from quire.sources.registry import SOURCES
from quire.store import SqlStore
from quire.view.model_specs import model_spec_for
from quire.wire.billed_calls import BilledCall

RESULTS = Path(__file__).with_name("corpus_results.json")
PROGRAMS = ("claude-code", "codex", "opencode", "gemini-cli", "pi")
SOURCE_NAMES = {"gemini-cli": "gemini"}
"""Names of programs as sources of an import, where they differ."""
AGE_SECONDS = 86_400
"""Age of the files: an import holds back the end of one that was just written."""
VERSION_STEP = 50
"""Versions of Claude Code that one row of the table has."""


@dataclass
class Session:
    name: str
    path: Path
    program: str
    facts: Facts
    differences: list[Difference]
    cost: float = 0.0
    stored_cost: float = 0.0
    stored_tokens: Tokens = field(default_factory=Tokens)


def select_tenth(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Every tenth session of each program, at least one."""
    numbers, selected = Counter[str](), list[StoredFile]()
    for each in files:
        if numbers[each.program] % 10 == 0:
            selected.append(each)
        numbers[each.program] += 1
    return selected


def find_beginning(path: Path) -> str:
    """Time of the first line that has one; none if the file is one JSON object."""
    lines = read_lines(path) if path.suffix == ".jsonl" else ()
    return next((line["timestamp"] for line in lines if isinstance(line.get("timestamp"), str)), "")


def read_facts(path: Path, program: str, counted: set[object]) -> Facts:
    match program:
        case "claude-code":
            return read_claude_code(path, counted)
        case "codex":
            return read_codex(path)
        case "opencode":
            return read_opencode(path)
        case "gemini-cli":
            return read_gemini_cli(path)
        case _:
            return read_pi(path, counted)


def place_file(path: Path, facts: Facts, home: Path) -> Path:
    """Copies a session to where its program keeps it."""
    folder = path.stem
    match facts.program:
        case "claude-code":
            target = home / ".claude" / "projects" / folder / f"{facts.session}.jsonl"
        case "codex":
            meta = next(line["payload"] for line in read_lines(path) if line["type"] == "session_meta")
            began = datetime.fromisoformat(meta["timestamp"].replace("Z", "+00:00"))
            name = f"rollout-{began:%Y-%m-%dT%H-%M-%S}-{facts.session}.jsonl"
            target = home / ".codex" / "sessions" / f"{began:%Y/%m/%d}" / name
        case "gemini-cli":
            target = home / ".gemini" / "tmp" / folder / "chats" / f"session-{facts.session}.json"
        case "pi":
            target = home / ".pi" / "agent" / "sessions" / folder / path.name
        case _:
            target = home / facts.program / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    at = time.time() - AGE_SECONDS
    os.utime(target, (at, at))
    return target


def price(request: Request) -> float:
    """Dollars of a request, by Quire's table of prices if the file does not state them."""
    if request.cost is not None:
        return request.cost
    tokens = request.tokens
    call = BilledCall(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        cache_write_1h_tokens=request.hour_tokens,
    )
    at = datetime.fromtimestamp(request.at, tz=UTC) if request.at is not None else datetime.now(UTC)
    return model_spec_for(request.model).add_up([call], at=at).usd or 0.0


async def compare_sessions(files: Iterable[tuple[Path, str]], home: Path) -> list[Session]:
    sessions: list[Session] = []
    counted: set[object] = set()
    placed: defaultdict[str, list[Path]] = defaultdict(list)
    # A request that several files hold is that of the session that began first. A fork begins with a copy of it.
    for path, program in sorted(files, key=lambda each: (find_beginning(each[0]), each[0].stat().st_size)):
        facts = read_facts(path, program, counted)
        placed[program].append(place_file(path, facts, home))
        sessions.append(Session(path.name, path, program, facts, [], sum(map(price, facts.requests))))
    database = home / "quire.sqlite"
    migrate.upgrade(f"sqlite:///{database}")
    async with SqlStore.open(f"sqlite:///{database}") as store:
        engine = Engine(store, EngineConfig.create(Settings()))
        for program, paths in placed.items():
            source = SOURCES[SOURCE_NAMES.get(program, program)]
            options = ImportOptions(processes=2, indexes=False, has_deadline=False)
            report = await import_files(
                engine, source, [file for path in paths for file in source.find_files(path)], options
            )
            for error in report.errors:
                print(f"{program}: {error.item}: {error.reason}", file=sys.stderr)
        stored = StoredSessions(store, database)
        await stored.load()
        for session in sessions:
            name = SOURCE_NAMES.get(session.program, session.program)
            id_ = stored.find(name, session.facts.session)
            found = await stored.read(name, session.facts.session, id_) if id_ is not None else None
            session.differences = compare(session.facts, found)
            for each in found.requests if found is not None else ():
                session.stored_tokens = session.stored_tokens.add(each.tokens)
            agents = stored.list_agents(name, session.facts.session)
            session.stored_cost = sum(stored.costs.get(each, 0.0) for each in (id_, *agents) if each is not None)
    return sessions


def name_group(session: Session) -> tuple[str, str]:
    """Program and version of a row of the table: of Claude Code, a range of versions."""
    version = session.facts.version
    parts = version.split(".")
    if session.program == "claude-code" and len(parts) == 3:
        first = int(parts[2]) // VERSION_STEP * VERSION_STEP
        version = f"{parts[0]}.{parts[1]}.{first}-{first + VERSION_STEP - 1}"
    return session.program, version


def print_table(sessions: Sequence[Session]) -> None:
    groups: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
    for session in sessions:
        groups[name_group(session)].append(session)
        groups[session.program, "all"].append(session)
    columns = f"{'sessions':>8} {'same':>5} {'same structure':>14}"
    print(f"{'program':<12} {'version':<16} {columns}  sessions by class of difference")
    for (program, version), members in sorted(
        groups.items(), key=lambda each: (PROGRAMS.index(each[0][0]), each[0][1])
    ):
        same, structure = count_same(members)
        classes = Counter(kind for each in members for kind in {difference.kind for difference in each.differences})
        listed = ", ".join(f"{kind} {count}" for kind, count in classes.most_common())
        print(f"{program:<12} {version:<16} {len(members):>8} {same:>5} {structure:>14}  {listed}")


def count_same(sessions: Iterable[Session]) -> tuple[int, int]:
    """Sessions without any difference, and those without one of what was said, in which order and where."""
    kinds = [{difference.kind for difference in session.differences} for session in sessions]
    return sum(not each for each in kinds), sum(not each & STRUCTURE for each in kinds)


def sum_up(sessions: Sequence[Session]) -> dict[str, dict[str, Any]]:
    """Requests, tokens and dollars by program, of the files and as they are stored."""
    totals: dict[str, dict[str, Any]] = {}
    for program in PROGRAMS:
        members = [each for each in sessions if each.program == program]
        if not members:
            continue
        requests = [request.tokens for each in members for request in each.facts.requests]
        own, its = Tokens(), Tokens()
        for tokens in requests:
            own = own.add(tokens)
        for each in members:
            its = its.add(each.stored_tokens)
        totals[program] = {
            "files": own._asdict() | {"usd": round(sum(each.cost for each in members), 2)},
            "stored": its._asdict() | {"usd": round(sum(each.stored_cost for each in members), 2)},
        }
    return totals


def print_totals(totals: dict[str, dict[str, Any]]) -> None:
    print(f"\n{'program':<12} {'':<8}" + "".join(f"{name:>16}" for name in (*Tokens._fields, "usd")))
    for program, sides in totals.items():
        for side, counts in sides.items():
            print(f"{program:<12} {side:<8}" + "".join(f"{value:>16,}" for value in counts.values()))


def make_document(sessions: Sequence[Session]) -> dict[str, Any]:
    same, structure = count_same(sessions)
    groups: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
    for session in sessions:
        groups[name_group(session)].append(session)
    table = [
        {
            "program": program,
            "version": version,
            "sessions": len(members),
            "same": count_same(members)[0],
            "same_structure": count_same(members)[1],
            "differences": dict(Counter(kind for each in members for kind in {one.kind for one in each.differences})),
        }
        for (program, version), members in groups.items()
    ]
    differing = {
        each.name: dict(sorted(Counter({one.kind: one.number for one in each.differences}).items()))
        for each in sessions
        if each.differences
    }
    counts = {"sessions": len(sessions), "same": same, "same_structure": structure}
    return counts | {"totals": sum_up(sessions), "table": table, "differing": differing}


def find_new(sessions: Sequence[Session], stored: dict[str, Any]) -> list[str]:
    """Sessions with a class of difference that the stored result does not explain."""
    explained = stored.get("explained", {})
    return [
        f"{each.name}: {', '.join(sorted(new))}"
        for each in sessions
        if (new := {one.kind for one in each.differences} - explained.get(each.name, {}).keys())
    ]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", metavar="TEXT", help="Sessions of this program, or whose file's name has this text.")
    parser.add_argument("--tenth", action="store_true", help="Every tenth session of each program.")
    parser.add_argument("--details", action="store_true", help="Print each difference.")
    parser.add_argument("--store", choices=("before", "after"), help=f"Store this part of {RESULTS.name}.")
    parser.add_argument(
        "--check", action="store_true", help="Fail if a difference is not explained in the stored result."
    )
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="Get the sessions of the index, and stop.")
    parser.add_argument("--remote", default="https://github.com", help="Where to fetch repositories from.")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if options.fetch is not None:
        equal, others = fetch(options.fetch, options.remote)
        print("\n".join([f"{equal} sessions have the digest of the index.", *others]))
        return
    folder = options.folder or os.environ.get("QUIRE_CORPUS")
    files = list_files([Path(folder)] if folder else find_beside(), PROGRAMS)
    if options.only:
        files = [each for each in files if options.only == each.program or options.only in each.name]
    files = select_tenth(files) if options.tenth else files
    if not files:
        print("The comparison with stored sessions is left out: QUIRE_CORPUS is not set to a folder that has some.")
        return
    with tempfile.TemporaryDirectory(prefix="quire-corpus-") as scratch:
        paths = unpack(files, Path(scratch))
        home = Path(scratch) / "home"
        home.mkdir()
        sessions = asyncio.run(compare_sessions([(paths[each.name], each.program) for each in files], home))
    for session in sessions if options.details else ():
        for each in session.differences:
            print(f"{session.name}: {each.kind} ({each.number}): {each.detail}")
    print_table(sessions)
    print_totals(sum_up(sessions))
    same, structure = count_same(sessions)
    print(f"\n{len(sessions)} sessions: {same} without any difference, {structure} without one of structure.")
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.store:
        stored[options.store] = make_document(sessions)
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    if options.check and (new := find_new(sessions, stored)):
        sys.exit("Differences that the stored result does not explain:\n" + "\n".join(new))


if __name__ == "__main__":
    main()
