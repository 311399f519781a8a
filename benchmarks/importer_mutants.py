"""Faults put between a transcript and what its import yields, to see whether the tests and the corpus notice each.

A mutant changes either a file's lines before the importer reads them, or the items that the importer yields. It knows
the format and `SourceMessage`, not the importer's code, so the same fault meets every version of an importer.

    python benchmarks/importer_mutants.py --fixtures    the tests in tests/importers, once per mutant
    python benchmarks/importer_mutants.py --corpus      the comparison of benchmarks/corpus.py, in QUIRE_CORPUS

The result is benchmarks/importer_mutants.json. A mutant is found if something differs that does not differ without it.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pytest

from corpus import compare_sessions
from corpus_files import find_beside, list_files, unpack
from quire.model import ToolCallPart, ToolResultPart
from quire.sources.base import SourceConversation, SourceError, SourceMessage
from quire.sources.registry import SOURCES

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_suffix(".json")
ENVIRONMENT_VARIABLE = "QUIRE_IMPORTER_MUTANT"
UNCHANGED = "unchanged"
"""Reads like a mutant and changes nothing: what fails under it says nothing of a mutant."""
PROGRAMS = ("claude-code", "codex")
TEST_FILES = {
    "claude-code": ("test_claude_code_source.py", "test_claude_code_boundaries.py"),
    "codex": ("test_codex_source.py",),
}
SHARED_TEST_FILES = ("test_transcript_shapes.py",)
MAX_SECONDS = 300
SESSIONS_PER_MUTANT = 4

JsonObject = dict[str, Any]
Messages = list[SourceMessage]
ChangeLines = Callable[[list[JsonObject]], list[JsonObject]]
ChangeMessages = Callable[[Messages, list[JsonObject]], Messages]
"""Gets the lines of the file, too."""
ChangeConversation = Callable[[SourceConversation], SourceConversation]


class Mutant(NamedTuple):
    name: str
    fault: str
    programs: tuple[str, ...]
    lines: ChangeLines | None = None
    messages: ChangeMessages | None = None
    conversation: ChangeConversation | None = None


MUTANTS: dict[str, Mutant] = {}


def mutate_lines(fault: str, *programs: str) -> Callable[[ChangeLines], ChangeLines]:
    def register(change: ChangeLines) -> ChangeLines:
        name = change.__name__.replace("_", "-")
        MUTANTS[name] = Mutant(name, fault, programs, lines=change)
        return change

    return register


def mutate_messages(fault: str, *programs: str) -> Callable[[ChangeMessages], ChangeMessages]:
    def register(change: ChangeMessages) -> ChangeMessages:
        name = change.__name__.replace("_", "-")
        MUTANTS[name] = Mutant(name, fault, programs, messages=change)
        return change

    return register


def replace_at(messages: Messages, index: int, **fields: Any) -> Messages:
    return [*messages[:index], messages[index]._replace(**fields), *messages[index + 1 :]]


def relink(messages: Messages, old: str, new: str | None) -> Messages:
    """Gives the children of a message another parent."""
    return [each._replace(parent=new) if each.parent == old else each for each in messages]


def scale_usage(message: SourceMessage, factor: int) -> SourceMessage:
    usage = message.usage
    assert usage is not None
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return message._replace(usage=usage.model_copy(update={name: factor * getattr(usage, name) for name in names}))


def list_results(messages: Messages) -> list[tuple[int, int, ToolResultPart]]:
    """Position of the message, position of the part, and the part."""
    return [
        (index, position, part)
        for index, message in enumerate(messages)
        for position, part in enumerate(message.message.parts)
        if isinstance(part, ToolResultPart)
    ]


def replace_part(messages: Messages, index: int, position: int, **fields: Any) -> Messages:
    parts = list(messages[index].message.parts)
    parts[position] = parts[position].model_copy(update=fields)
    message = messages[index].message.model_copy(update={"parts": tuple(parts)})
    return replace_at(messages, index, message=message)


def get_item_text(line: JsonObject) -> str:
    """The text of a message of Codex's, or an empty one."""
    content = line.get("payload", {}).get("content")
    return "".join(each.get("text") or "" for each in content) if isinstance(content, list) else ""


def get_content(line: JsonObject) -> list[JsonObject]:
    content = line.get("message", {}).get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def get_last_words(lines: Sequence[JsonObject], role: str = "user") -> str:
    """The last text of the user's among Codex's lines."""
    texts = (get_item_text(line) for line in reversed(lines) if line.get("payload", {}).get("role") == role)
    return next((text for text in texts if text and not text.startswith("<")), "")


# The tree.


@mutate_messages("A message in the middle has no parent and begins a tree of its own.", "claude-code", "codex")
def root_in_the_middle(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    linked = [index for index, each in enumerate(messages) if each.parent is not None and each.compaction is None]
    return replace_at(messages, linked[len(linked) // 2], parent=None) if linked else messages


@mutate_messages(
    "A message that follows a line which is none (progress, hook, attachment) begins a tree of its own.", "claude-code"
)
def links_forgotten(messages: Messages, lines: list[JsonObject]) -> Messages:
    links = {line.get("uuid") for line in lines if line.get("type") not in ("user", "assistant")}
    starts = {line.get("uuid") for line in lines if line.get("parentUuid") in links - {None}}
    return [
        each._replace(parent=None) if each.id in starts and each.parent and not each.compaction else each
        for each in messages
    ]


@mutate_messages("A branch that a person made continues the branch that it left.", "claude-code")
def branch_merged(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    seen: set[str | None] = set()
    merged: Messages = []
    for each in messages:
        is_branch = each.parent in seen
        seen.add(each.parent)
        merged.append(each._replace(parent=merged[-1].id) if is_branch else each)
    return merged


@mutate_messages("A prompt becomes a branch beside the reply that it follows.", "claude-code")
def branch_made(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    parents = {each.id: each.parent for each in messages}
    for index in range(len(messages) - 1, 0, -1):
        each = messages[index]
        if each.message.role == "user" and each.compaction is None and each.parent is not None:
            return replace_at(messages, index, parent=parents.get(each.parent))
    return messages


@mutate_messages("Each call of a reply with parallel calls is a message.", "claude-code", "codex")
def parallel_calls_split(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    split: Messages = []
    ends: dict[str, str] = {}
    """The last piece of each message that was split."""
    for original in messages:
        message = original._replace(parent=ends.get(original.parent or "", original.parent))
        calls = [part for part in message.message.parts if isinstance(part, ToolCallPart)]
        if len(calls) < 2:
            split.append(message)
            continue
        parts = tuple(part for part in message.message.parts if part not in calls[1:])
        split.append(message._replace(message=message.message.model_copy(update={"parts": parts})))
        for number, call in enumerate(calls[1:], start=2):
            piece = message.message.model_copy(update={"parts": (call,)})
            id_ = f"{message.id}/{number}"
            split.append(message._replace(id=id_, parent=split[-1].id, message=piece, usage=None, dropped=()))
        ends[message.id] = split[-1].id
    return split


@mutate_messages("The last reply is lost.", "claude-code", "codex")
def last_reply_lost(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].message.role == "assistant":
            lost = messages[index]
            return relink([*messages[:index], *messages[index + 1 :]], lost.id, lost.parent)
    return messages


@mutate_lines("A file that begins in the middle of a session looks like a whole one.", "claude-code")
def beginning_hidden(lines: list[JsonObject]) -> list[JsonObject]:
    uuids = {line.get("uuid") for line in lines}
    first = next((index for index, line in enumerate(lines) if line.get("uuid")), None)
    if first is None or lines[first].get("parentUuid") in (None, *uuids):
        return lines
    return [*lines[:first], {**lines[first], "parentUuid": None}, *lines[first + 1 :]]


@mutate_messages("Every message is an hour late.", "codex")
def times_shifted(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    return [each._replace(at=each.at + 3_600_000_000) if each.at is not None else each for each in messages]


# Calls and results.


@mutate_messages("Two results have exchanged their contents.", "claude-code", "codex")
def results_swapped(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    results = list_results(messages)
    for (index, position, first), (other, place, second) in pairwise(results):
        if first.content != second.content:
            swapped = replace_part(messages, index, position, content=second.content)
            return replace_part(swapped, other, place, content=first.content)
    return messages


@mutate_messages("A result belongs to another call.", "claude-code")
def result_of_another_call(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    results = list_results(messages)
    if len(results) < 2:
        return messages
    (index, position, _), *_, (_, _, other) = results
    return replace_part(messages, index, position, call_id=other.call_id)


# Usage.


@mutate_messages("The usage of a reply is counted once for each of two parts.", "claude-code", "codex")
def usage_doubled(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    return [scale_usage(each, 2) if each.usage and len(each.message.parts) > 1 else each for each in messages]


@mutate_messages("A reply that only calls tools has no usage.", "claude-code")
def usage_of_calls_lost(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    return [each._replace(usage=None) if each.message.tool_calls else each for each in messages]


@mutate_lines("The usage that is written after a tool's output is lost.", "codex")
def late_usage_lost(lines: list[JsonObject]) -> list[JsonObject]:
    kept: list[JsonObject] = []
    is_after_output = False
    for line in lines:
        payload = line.get("payload", {})
        if line.get("type") == "response_item" and payload.get("type") != "reasoning":
            is_after_output = str(payload.get("type")).endswith("_output")
        if not (is_after_output and (payload.get("type") == "token_count" or line["type"] == "token_usage_record")):
            kept.append(line)
    return kept


@mutate_messages("Each reply has the usage of the one before it.", "claude-code", "codex")
def usage_of_the_neighbour(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    before = None
    moved: Messages = []
    for each in messages:
        if each.message.role == "assistant":
            moved.append(each._replace(usage=before))
            before = each.usage
        else:
            moved.append(each)
    return moved


@mutate_messages("Cached tokens are counted as new ones.", "claude-code", "codex")
def cached_tokens_lost(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    return [
        each._replace(usage=each.usage.model_copy(update={"cache_read_tokens": 0})) if each.usage else each
        for each in messages
    ]


@mutate_messages("The usage of a reply is of another model.", "claude-code", "codex")
def usage_of_another_model(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    used = [index for index, each in enumerate(messages) if each.usage and each.usage.output_tokens]
    if not used:
        return messages
    usage = messages[used[-1]].usage
    assert usage is not None
    models = [each.usage.model for each in messages if each.usage and each.usage.model != usage.model]
    return replace_at(messages, used[-1], usage=usage.model_copy(update={"model": (*models, "another-model")[0]}))


@mutate_lines("An adviser's iteration has the model of the reply that asked for advice.", "claude-code")
def adviser_of_the_replys_model(lines: list[JsonObject]) -> list[JsonObject]:
    def change(line: JsonObject) -> JsonObject:
        message = line.get("message", {})
        iterations = message.get("usage", {}).get("iterations") if line.get("type") == "assistant" else None
        if not any("model" in each for each in iterations or ()):
            return line
        changed = [{**each, "model": message["model"]} if "model" in each else each for each in iterations]
        return {**line, "message": {**message, "usage": {**message["usage"], "iterations": changed}}}

    return [change(line) for line in lines]


@mutate_lines("A turn that the program made up is a request of a model.", "claude-code")
def synthetic_turn_counted(lines: list[JsonObject]) -> list[JsonObject]:
    models = [line["message"].get("model") for line in lines if line.get("type") == "assistant"]
    model = next((each for each in models if each and each != "<synthetic>"), "claude-opus-4-6")
    return [
        {**line, "isApiErrorMessage": False, "message": {**line["message"], "model": model}}
        if line.get("type") == "assistant" and line["message"].get("model") == "<synthetic>"
        else line
        for line in lines
    ]


# Compactions.


@mutate_messages("The summary of a compaction is the user's last message.", "claude-code")
def summary_of_the_user(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    words, changed = "", list[SourceMessage]()
    for each in messages:
        if each.compaction is not None and words:
            changed.append(each._replace(compaction=each.compaction._replace(summary=words)))
            continue
        changed.append(each)
        if each.message.role == "user" and each.message.text:
            words = each.message.text
    return changed


@mutate_lines("A compaction that cannot be read has the user's last message as its summary.", "codex")
def opaque_compaction_readable(lines: list[JsonObject]) -> list[JsonObject]:
    return [
        {**line, "payload": {**line["payload"], "message": get_last_words(lines[:index])}}
        if line.get("type") == "compacted" and not line["payload"].get("message")
        else line
        for index, line in enumerate(lines)
    ]


@mutate_messages("A compaction stands before the reply that it follows.", "claude-code", "codex")
def compaction_moved(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    for index in range(len(messages) - 1, 1, -1):
        summary, place = messages[index], index - 1
        while place and messages[place].message.role != "assistant" and messages[place].compaction is None:
            place -= 1
        reply = messages[place]
        is_line = all(after.parent == before.id for before, after in pairwise(messages[place : index + 1]))
        if (
            summary.compaction is not None
            and is_line
            and reply.message.role == "assistant"
            and reply.parent is not None
        ):
            moved = relink(messages, summary.id, messages[index - 1].id)
            early, late = summary._replace(parent=reply.parent), reply._replace(parent=summary.id)
            return [*moved[:place], early, late, *moved[place + 1 : index], *moved[index + 1 :]]
    return messages


@mutate_messages("What a compaction keeps verbatim is forgotten.", "claude-code", "codex")
def kept_messages_forgotten(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    return [
        each._replace(compaction=each.compaction._replace(preserved=())) if each.compaction else each
        for each in messages
    ]


@mutate_messages("What a compaction keeps verbatim follows it a second time.", "claude-code", "codex")
def kept_messages_repeated(messages: Messages, lines: list[JsonObject]) -> Messages:
    del lines
    known = {each.id: each for each in messages}
    repeated: Messages = []
    ends: dict[str, str] = {}
    for original in messages:
        repeated.append(original._replace(parent=ends.get(original.parent or "", original.parent)))
        for id_ in original.compaction.preserved if original.compaction else ():
            if id_ in known:
                copy = known[id_]._replace(id=f"{id_}/again", parent=repeated[-1].id, usage=None)
                repeated.append(copy)
                ends[original.id] = copy.id
    return repeated


# Whose words they are, and which session they are in.

_TAGS = (
    "command-name", "command-message", "command-args", "local-command-stdout", "local-command-stderr",
    "local-command-caveat", "bash-input", "bash-stdout", "bash-stderr", "system-reminder", "task-notification",
    "user_instructions", "environment_context", "subagent_notification", "recommended_plugins",
)  # fmt: skip
_PREFIXES = ("[Request interrupted by user", "Caveat: ", "# AGENTS.md instructions for ", "Operation stopped by hook: ")


def strip_marks(text: str) -> str:
    for tag in _TAGS:
        text = text.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    return text.strip() if not text.startswith(_PREFIXES) else text.removeprefix(text.split()[0]).strip()


@mutate_lines("What the program wrote in the user's place looks typed.", "claude-code", "codex")
def harness_as_the_user(lines: list[JsonObject]) -> list[JsonObject]:
    def change(line: JsonObject) -> JsonObject:
        holder = line.get("payload") if line.get("type") == "response_item" else line.get("message")
        if not isinstance(holder, dict) or holder.get("role") != "user":
            return line
        content = holder.get("content")
        if isinstance(content, str):
            content = strip_marks(content)
        elif isinstance(content, list):
            content = [{**each, "text": strip_marks(each["text"])} if "text" in each else each for each in content]
        key = "payload" if "payload" in line else "message"
        changed = {name: value for name, value in line.items() if name != "isMeta"}
        return {**changed, key: {**holder, "content": content}}

    return [change(line) for line in lines]


@mutate_lines("Prompts that were queued while the agent worked are lost.", "claude-code")
def queued_prompts_lost(lines: list[JsonObject]) -> list[JsonObject]:
    def change(line: JsonObject) -> JsonObject | None:
        if line.get("type") == "queue-operation":
            return None
        if line.get("attachment", {}).get("type") == "queued_command":
            return {**line, "attachment": {"type": "hook_success"}}
        return line

    return [changed for line in lines if (changed := change(line)) is not None]


@mutate_lines("The parent's history, which a sub-agent's file repeats, is the sub-agent's.", "codex")
def copied_parent_counted(lines: list[JsonObject]) -> list[JsonObject]:
    first = next((line for line in lines if line.get("type") == "session_meta"), None)
    if first is None or not any(
        line["payload"].get("id") != first["payload"].get("id") for line in lines if line.get("type") == "session_meta"
    ):
        return lines
    payload = {name: value for name, value in first["payload"].items() if not name.startswith("forked_from")}
    return [
        {**line, "payload": payload} if line is first else line
        for line in lines
        if line is first or line.get("type") != "session_meta"
    ]


@mutate_lines("The header of a fork or of a sub-agent does not name the thread that it comes from.", "codex")
def forks_parent_lost(lines: list[JsonObject]) -> list[JsonObject]:
    def strip(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: strip(each)
            for name, each in cast("JsonObject", value).items()
            if not name.startswith(("forked_from", "parent_thread"))
        }

    return [
        {**line, "payload": strip(line["payload"])} if line.get("type") == "session_meta" else line for line in lines
    ]


def sub_agents_parent_lost(conversation: SourceConversation) -> SourceConversation:
    return conversation._replace(origin=conversation.origin.model_copy(update={"parent_agent": None}))


MUTANTS["sub-agents-parent-lost"] = Mutant(
    "sub-agents-parent-lost", "A sub-agent has no parent.", ("codex",), conversation=sub_agents_parent_lost
)


# Running them.


def read_objects(data: bytes) -> list[JsonObject]:
    """The objects of a file, also where two are in one line; what is no JSON is left out."""
    decoder, objects = json.JSONDecoder(), list[JsonObject]()
    for line in data.decode(errors="replace").split("\n"):
        rest = line.strip()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except ValueError:
                break
            if isinstance(value, dict):
                objects.append(value)
            rest = rest[end:].lstrip()
    return objects


applied: dict[str, int] = {}
"""How many reads each mutant changed."""


def read_mutated(
    mutant: Mutant, read: Callable[..., Iterator[SourceConversation | SourceError]], path: Path, since: int | None
) -> Iterator[SourceConversation | SourceError]:
    """What the importer yields with the fault. It is read at once: the lines are changed for that long only."""
    is_plain = path.suffix in (".jsonl", ".json")
    original = read_objects(path.read_bytes()) if is_plain and path.is_file() else []
    changed = mutant.lines(original) if mutant.lines is not None else original
    with serve_lines(path, changed) if changed != original else serve_lines(path, None):
        items = [
            item._replace(messages=list(item.messages)) if isinstance(item, SourceConversation) else item
            for item in read(path, since=since)
        ]
    is_changed = changed != original
    for index, item in enumerate(items):
        if isinstance(item, SourceConversation):
            read_items = cast("list[SourceMessage | SourceError]", item.messages)
            messages = [each for each in read_items if isinstance(each, SourceMessage)]
            errors = [each for each in read_items if isinstance(each, SourceError)]
            mutated = mutant.messages(messages, original) if mutant.messages is not None else messages
            renamed = mutant.conversation(item) if mutant.conversation is not None else item
            is_changed = is_changed or mutated != messages or renamed != item
            if mutated != messages:
                renamed = renamed._replace(messages=[*errors, *mutated])
            items[index] = renamed
    applied[mutant.name] = applied.get(mutant.name, 0) + is_changed
    return iter(items)


@contextmanager
def serve_lines(path: Path, lines: list[JsonObject] | None) -> Generator[None]:
    """Opens other lines in the place of a file. Its name, its time and its neighbours are the real ones."""
    if lines is None:
        yield
        return
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        data = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
        copy.write(data.encode(errors="surrogatepass"))
        copy.flush()
        open_path = Path.open

        def open_copy(self: Path, *args: Any, **kwargs: Any) -> IO[Any]:
            return open_path(Path(copy.name) if self == path else self, *args, **kwargs)

        Path.open = cast("Any", open_copy)
        try:
            yield
        finally:
            Path.open = open_path


@contextmanager
def activate(program: str, name: str) -> Generator[None]:
    """Lets every import of the program meet the fault."""
    mutant = MUTANTS.get(name) or Mutant(UNCHANGED, "Nothing is changed.", PROGRAMS)
    source = type(SOURCES[program])
    read = source.read
    source.read = cast("Any", make_reader(mutant, read))
    try:
        yield
    finally:
        source.read = read


def make_reader(mutant: Mutant, read: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(read)
    def read_with_fault(self: Any, path: Path, *, since: int | None = None) -> Any:
        return read_mutated(mutant, partial(read, self), path, since)

    return read_with_fault


# As a plugin of pytest: the mutant in the environment, as `codex/times-shifted`, is active. Tests that are expected to
# fail and shapes of the other program are left out.

_active: list[Any] = []
_failed: list[str] = []


def pytest_configure() -> None:
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
        _active.append(activate(*chosen.split("/")))
        _active[-1].__enter__()


def pytest_unconfigure() -> None:
    while _active:
        _active.pop().__exit__(None, None, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    program = os.environ.get(ENVIRONMENT_VARIABLE, "").split("/")[0]
    others = tuple(f"[{each}/" for each in PROGRAMS if each != program)
    items[:] = [
        item
        for item in items
        if not any(item.iter_markers("xfail")) and not any(other in item.nodeid for other in others)
    ]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


def list_pairs() -> list[tuple[Mutant, str]]:
    return [(mutant, program) for program in PROGRAMS for mutant in MUTANTS.values() if program in mutant.programs]


def list_arguments(program: str) -> list[str]:
    folder = ROOT / "tests" / "importers"
    files = (folder / name for name in (*SHARED_TEST_FILES, *TEST_FILES[program]))
    options = ("-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT))
    return [*options, *(str(file) for file in files if file.exists())]


def run_in_process(sender: Connection | None, program: str, name: str, arguments: Sequence[str]) -> None:
    os.environ[ENVIRONMENT_VARIABLE] = f"{program}/{name}"
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        code = pytest.main(list(arguments), plugins=[sys.modules[__name__]])
    if sender is not None:
        sender.send((int(code), _failed, applied.get(name, 0)))


def run_tests(name: str, program: str, *, deselected: Sequence[str] = ()) -> tuple[list[str], int]:
    """The tests that fail with a mutant, and how many reads it changed. A process of its own runs them."""
    forks = get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    arguments = [*list_arguments(program), *(f"--deselect={each}" for each in deselected)]
    process = forks.Process(target=run_in_process, args=(sender, program, name, arguments))
    process.start()
    code, failed, reads = receiver.recv() if receiver.poll(MAX_SECONDS) else (-1, [], 0)
    process.kill()
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"The tests of {program} did not run with {name}: exit code {code}.")
    return failed, reads


def run_fixtures(only: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # The processes that run the tests are forks of this one, and need not import what it has.
    run_in_process(None, PROGRAMS[0], UNCHANGED, [*list_arguments(PROGRAMS[0]), "--collect-only"])
    for program in PROGRAMS:
        failing, _ = run_tests(UNCHANGED, program)
        if failing:
            print(f"{program}: left out, as they fail without a mutant: {', '.join(failing)}")
        for mutant, of in list_pairs():
            if of == program and (not only or mutant.name in only):
                tests, reads = run_tests(mutant.name, program, deselected=failing)
                key = f"{program}: {mutant.name}"
                found[key] = {
                    "found": bool(tests),
                    "reads changed": reads,
                    "tests": [each[-120:] for each in tests[:3]],
                }
                print(f"{'found ' if tests else 'MISSED'} {key} ({reads} reads changed; {len(tests)} tests fail)")
    return found


def run_corpus(folders: Sequence[Path], only: Sequence[str]) -> dict[str, Any]:
    """Compares the smallest sessions that each mutant changes, with and without it."""
    found: dict[str, Any] = {}
    files = list_files(folders, PROGRAMS)
    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as scratch:
        paths = unpack(files, Path(scratch))
        for mutant, program in list_pairs():
            if only and mutant.name not in only:
                continue
            candidates = sorted((paths[each.name] for each in files if each.program == program), key=get_size)
            changed = select_changed(mutant, program, candidates)
            before, after = compare_files(changed, program, UNCHANGED), compare_files(changed, program, mutant.name)
            classes = sorted({kind for name, kind, detail in after - before})
            sessions = sorted({name for name, _, _ in after - before})
            key = f"{program}: {mutant.name}"
            names = [each.name for each in changed]
            found[key] = {"found": bool(classes), "sessions": names, "in": sessions, "classes": classes}
            verdict = "found " if classes else "MISSED"
            print(f"{verdict} {key} (in {len(sessions)} of {len(changed)} sessions: {', '.join(classes)})", flush=True)
    return found


def get_size(path: Path) -> int:
    return path.stat().st_size


def select_changed(mutant: Mutant, program: str, paths: Sequence[Path]) -> list[Path]:
    """The first sessions of which the importer yields something else with the mutant."""
    changed: list[Path] = []
    for path in paths:
        lines = read_objects(path.read_bytes()) if mutant.lines is not None else []
        if mutant.lines is not None and mutant.lines(lines) == lines:
            continue
        with_fault = read_all(read_mutated(mutant, SOURCES[program].read, path, None))
        changed += [path] if with_fault != read_all(SOURCES[program].read(path)) else []
        if len(changed) == SESSIONS_PER_MUTANT:
            break
    return changed


def read_all(items: Iterable[SourceConversation | SourceError]) -> list[object]:
    return [
        each._replace(messages=list(each.messages)) if isinstance(each, SourceConversation) else each for each in items
    ]


def compare_files(paths: Sequence[Path], program: str, name: str) -> set[tuple[str, str, str]]:
    """Name, class and detail of each difference between the files and what is stored of them."""
    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as home, activate(program, name):
        sessions = asyncio.run(compare_sessions([(path, program) for path in paths], Path(home)))
    return {(each.name, one.kind, one.detail) for each in sessions for one in each.differences}


def store_results(kind: str, found: dict[str, Any]) -> None:
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    stored["mutants"] = {f"{program}: {mutant.name}": mutant.fault for mutant, program in list_pairs()}
    before = stored.get(kind, {}).get("mutants", {})
    merged = {key: found.get(key) or before.get(key) for key in stored["mutants"]}
    stored[kind] = {
        "date": datetime.now(UTC).date().isoformat(),
        "found": sum(bool(each and each["found"]) for each in merged.values()),
        "of": len(merged),
        "mutants": merged,
    }
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"{kind}: {stored[kind]['found']} of {stored[kind]['of']} mutants found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", action="store_true", help="run the tests of the importers with each mutant")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="run these mutants only")
    parser.add_argument("--corpus", action="store_true", help="compare stored sessions with each mutant")
    options = parser.parse_args()
    if options.corpus:
        folders = [Path(folder)] if (folder := os.environ.get("QUIRE_CORPUS")) else find_beside()
        if not folders:
            parser.error("set QUIRE_CORPUS to a folder with stored sessions")
        store_results("corpus", run_corpus(folders, options.only))
    if options.fixtures:
        store_results("fixtures", run_fixtures(options.only))


if __name__ == "__main__":
    main()
