"""Search over real sessions: 60 questions that a person would ask of her own history, each with what answers it.

`corpus_questions.jsonl` has the questions and, for each, every message that answers it: session, and the id of the line
or item there, copies in other sessions included. They were written by reading the sessions, before any search was run:
20 about what was said, 20 about errors and results of tools, 10 about files and commands, 10 that share no word with
their answer. Odd numbers are the half on which weights may be chosen. A hit is right if it has the answer's text.

The sessions are laid out as the home of their programs (`corpus_home.py`), imported, indexed and asked: by words, as a
home is without settings, and by words and meaning. No model is called.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from corpus_home import StoredSession, import_home, list_sessions, make_environment, write_home
from quire.engine import Engine, EngineConfig
from quire.engine.message_index import BULK_BATCH_ENTRIES, index_messages
from quire.engine.search import search_messages
from quire.llm.embeddings import load_local_embedder
from quire.settings import Settings
from quire.store import SqlStore
from quire.view.recalled_messages import message_to_text
from support import Report

QUESTIONS = Path(__file__).with_name("corpus_questions.jsonl")
KINDS = ("said", "output", "file", "paraphrase")
LIMIT = 10
MAX_FINGERPRINT_CHARS = 1_000
QUICK_PROCESSES = 5
MIN_FIRST, MIN_FIRST_TEN = 36, 52
MAX_SECONDS = 0.8
"""CPU time of a call: its time on a machine that does nothing else."""


class Question(NamedTuple):
    number: int
    kind: str
    text: str
    fingerprints: frozenset[str]
    """The letters and digits of each message that answers it."""

    def find_rank(self, texts: Sequence[str]) -> int | None:
        """Place of the first text, from 1, that has an answer."""
        for place, text in enumerate(map(strip_to_letters, texts), start=1):
            if any(each in text for each in self.fingerprints):
                return place
        return None


def strip_to_letters(text: str) -> str:
    """Without white space, marks and JSON's escapes, which an importer may write otherwise."""
    return re.sub(r"\\+[ntr]?|[^\w\\]+|_+", "", text)


def load_questions(corpus: Path) -> list[Question]:
    sessions = {each.session: each for each in list_sessions(corpus)}
    questions: list[Question] = []
    for line in QUESTIONS.read_text("utf-8").splitlines():
        row = json.loads(line)
        fingerprints = frozenset(make_fingerprint(sessions[each["session"]], each) for each in row["answers"])
        questions.append(Question(row["number"], row["kind"], row["question"], fingerprints))
    return questions


def make_fingerprint(session: StoredSession, answer: Mapping[str, str]) -> str:
    texts = [text for key, part, text in read_parts(session) if (key, part) == (answer["id"], answer["part"])]
    if not texts:
        raise ValueError(f"{session.path.name} has no {answer['part']} {answer['id']}.")
    # Before the last one there can be what an editor added.
    return strip_to_letters(texts[-1])[:MAX_FINGERPRINT_CHARS]


@cache
def read_parts(session: StoredSession) -> list[tuple[str, str, str]]:
    """Id, kind (`text`, `call` or `result`) and text of each part of a session, as its program stores them."""
    if session.path.suffix == ".json":
        messages = json.loads(session.path.read_text("utf-8"))["messages"]
        return [part for message in messages for part in _iter_document_parts(session.program, message)]
    parts: list[tuple[str, str, str]] = []
    with session.path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if session.program == "codex":
                parts += _iter_codex_parts(row.get("payload") or {}, f"line:{number}")
            elif isinstance(message := row.get("message"), dict):
                key = row.get("uuid") or row.get("id") or f"line:{number}"
                parts += [(key, *part) for part in _iter_blocks(message)]
    return parts


def _iter_blocks(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Parts of a message of Claude Code or pi."""
    content = message.get("content")
    is_result = message.get("role") == "toolResult"
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
        match block.get("type"):
            case "text":
                yield "result" if is_result else "text", block["text"]
            case "tool_use" | "toolCall":
                yield "call", find_longest_text(block.get("input") or block.get("arguments"))
            case "tool_result":
                yield "result", join_texts(block.get("content"))


def _iter_codex_parts(item: Mapping[str, Any], line: str) -> Iterator[tuple[str, str, str]]:
    match item.get("type"):
        case "message":
            yield line, "text", join_texts(item.get("content"))
        case "function_call" | "custom_tool_call":
            yield item["call_id"], "call", str(item.get("arguments") or item.get("input"))
        case "function_call_output" | "custom_tool_call_output":
            yield item["call_id"], "result", join_texts(item.get("output"))


def _iter_document_parts(program: str, message: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Parts of a message of opencode or Gemini CLI."""
    if program == "gemini-cli":
        yield message["id"], "text", join_texts(message.get("content"))
        for call in message.get("toolCalls") or ():
            yield call["id"], "call", find_longest_text(call.get("args"))
        return
    for part in message.get("parts", ()):
        if part["type"] == "text":
            yield part["id"], "text", part["text"]
        elif part["type"] == "tool":
            state = part.get("state", {})
            yield part["id"], "call", find_longest_text(state.get("input"))
            yield part["id"], "result", str(state.get("output") or state.get("error"))


def join_texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(each if isinstance(each, str) else str(each.get("text", "")) for each in content or ())


def find_longest_text(value: Any) -> str:
    """The longest text in the arguments of a call, which stands in it whatever their order is."""
    if isinstance(value, dict | list):
        return max(map(find_longest_text, value.values() if isinstance(value, dict) else value), key=len, default="")
    return value if isinstance(value, str) else ""


class Answer(NamedTuple):
    question: Question
    rank: int | None
    seconds: float


def make_engine(store: SqlStore, *, meaning: bool) -> Engine:
    return Engine(store, EngineConfig.create(Settings(), embedder=load_local_embedder() if meaning else None))


async def ask_all(engine: Engine, questions: Sequence[Question]) -> list[Answer]:
    """Asks with a complete index and a warm catalog."""
    while not (await search_messages(engine, questions[0].text)).complete:
        await engine.runtime.jobs.wait()
        await index_messages(engine, batch_entries=BULK_BATCH_ENTRIES)
    answers: list[Answer] = []
    for question in questions:
        start = time.perf_counter()
        result = await search_messages(engine, question.text, limit=LIMIT)
        seconds = time.perf_counter() - start
        # As in the index, but with what boilerplate removal leaves out: it may be part of an answer.
        texts = [message_to_text(hit.entry.message) for hit in result.messages]
        answers.append(Answer(question, question.find_rank(texts), seconds))
    return answers


async def count_stored(store: SqlStore, questions: Sequence[Question]) -> int:
    """Questions of which an answer is in the database at all."""
    missing = set(questions)
    for conversation in await store.list_conversation_ids(project=None, client=None):
        for branch in await store.fetch_branches(conversation):
            entries = await store.read_range(conversation, branch=branch.number, kinds=("message",))
            text = "\0".join(strip_to_letters(message_to_text(entry.message)) for entry in entries)
            missing -= {each for each in missing if any(one in text for one in each.fingerprints)}
    return len(questions) - len(missing)


def ask_processes(home: Path, questions: Sequence[Question], *options: str) -> tuple[list[float], list[float]]:
    """Seconds of `quire search`, a process for each question, and of CPU time in them."""
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for question in questions:
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "quire", "search", question.text, "--json", *options]
        subprocess.run(command, env=make_environment(home), cwd=home, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return seconds, cpu_seconds


def print_answers(report: Report, name: str, answers: Sequence[Answer]) -> None:
    def make_row(name: str, some: Sequence[Answer]) -> tuple[object, ...]:
        ranks = [each.rank for each in some]
        return (
            name,
            len(some),
            sum(rank == 1 for rank in ranks),
            sum(rank is not None for rank in ranks),
            statistics.mean(1 / rank if rank else 0.0 for rank in ranks),
        )

    rows = [make_row(name, answers)]
    rows += [make_row(f"  {kind}", [each for each in answers if each.question.kind == kind]) for kind in KINDS]
    for half, rest in (("odd, tuning half", 1), ("even, other half", 0)):
        rows.append(make_row(f"  {half}", [each for each in answers if each.question.number % 2 == rest]))
    report.print_table(f"Right answers, {name}", ("ranking", "n", "first", f"in {LIMIT}", "reciprocal rank"), rows)
    print("rank by number:", " ".join(f"{each.question.number}:{each.rank or '-'}" for each in answers))


def print_seconds(report: Report, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    header = ("seconds of a call", "median", "95 %", "most")
    table = [(name, statistics.median(each), statistics.quantiles(each, n=20)[-1], max(each)) for name, each in rows]
    report.print_table("Time", header, [*table])


async def run(corpus: Path, home: Path, *, quick: bool) -> Report:
    report = Report("corpus_search")
    questions = load_questions(corpus)
    timed = questions[:QUICK_PROCESSES] if quick else questions
    if not (home / "quire.db").exists():
        write_home(corpus, home)
        import_home(home)
    url = make_environment(home)["QUIRE_DATABASE_URL"]
    seconds: list[tuple[str, Sequence[float]]] = []
    async with SqlStore.open(url) as store:
        stored = await count_stored(store, questions)
        answers = await ask_all(make_engine(store, meaning=False), questions)
        print(f"{stored} of {len(questions)} questions have an answer in the imported home")
        print_answers(report, "words", answers)
        seconds.append(("words, warm", [each.seconds for each in answers]))
    for name, each in zip(("words, `quire search`", "  of it CPU"), ask_processes(home, timed), strict=True):
        seconds.append((name, each))
    async with SqlStore.open(url) as store:
        embedded = await ask_all(make_engine(store, meaning=True), questions)
        print_answers(report, "words and meaning", embedded)
        seconds.append(("words and meaning, warm", [each.seconds for each in embedded]))
    processes, cpu_seconds = ask_processes(home, timed, "--set", "embeddings=local")
    seconds += [("words and meaning, `quire search`", processes), ("  of it CPU too", cpu_seconds)]
    print_seconds(report, seconds)
    first = sum(each.rank == 1 for each in embedded)
    report.require_at_most("not_first", len(questions) - first, len(questions) - MIN_FIRST)
    found = sum(each.rank is not None for each in embedded)
    report.require_at_most("not_in_ten", len(questions) - found, len(questions) - MIN_FIRST_TEN)
    report.require_at_most("cpu_seconds", statistics.median(cpu_seconds), MAX_SECONDS)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the corpus (see corpus_home.py)")
    parser.add_argument("--home", type=Path, help="where the home is written, or was by an earlier run")
    parser.add_argument("--quick", action="store_true", help=f"`quire search` for {QUICK_PROCESSES} questions alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-corpus-") as folder:
        asyncio.run(run(options.data, options.home or Path(folder), quick=options.quick)).print_goals_and_exit()
