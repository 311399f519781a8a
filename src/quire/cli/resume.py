"""`quire resume`: writes a native session of a coding agent from the log, with which that agent continues."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from quire.cli.common import (
    CommandTarget,
    find_branch,
    open_conversation,
    open_store,
    resolve_conversation_id,
    run_async,
)
from quire.cli.output import Result, Verbatim, make_text, pluralize, print_note
from quire.errors import ConversationNotFound, InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from quire.log import ConversationRecord
    from quire.resume.history import AdaptedHistory
    from quire.resume.session import NativeSession
    from quire.schemas.records import ResumedSessionSchema
    from quire.store import SqlStore

_NUMBERED_NAME = re.compile(r"(.*)@([0-9]{1,9})", re.DOTALL)


def command(
    target: CommandTarget,
    *,
    program: Annotated[
        str | None,
        typer.Option("--in", metavar="PROGRAM", help="The agent: claude, codex, opencode or gemini."),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Start the agent with it.")] = False,
    handover: Annotated[
        bool, typer.Option("--print", help="Print a hand-over as text instead: task, state, decisions, last turns.")
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(min=200, max=50_000, help="Maximum tokens of that text.", show_default=True)
    ] = 4_000,
) -> Result:
    """Write an agent session from the log, so that the agent continues a conversation that any agent began.

    CONVERSATION@N continues after entry #N, with what the context was then: messages that a later compaction covers are
    in it. Nothing that exists is overwritten, and what the agent cannot take is listed. Each statement of a hand-over
    cites its message. The `summarizer` of the settings writes its state. Without one, no model is called.
    """
    if handover:
        return run_async(_print_handover(target, max_tokens))
    if program is None:
        raise typer.BadParameter("name the agent with --in, or print a hand-over with --print.")
    document, session = _write_session(run_async(_read_source(target, program)), program)
    run_async(_record_session(document, program, target.overrides))

    lines = [
        f"Wrote {pluralize(document.messages, 'message')} of {document.conversation} up to #{document.last} as a "
        f"session of {program}: {document.path}",
        *(f"  {count:,} {change}" for change, count in document.changes.items()),
    ]
    if run:
        print_note("\n".join(lines))
        _start(program, session, Path(document.folder), target.overrides)

    def draw(_: "Console") -> "Iterable[RenderableType]":
        yield make_text("\n".join([*lines, "Continue with:"]))
        yield Verbatim(document.command)

    return Result(document, draw)


async def _print_handover(target: CommandTarget, max_tokens: int) -> Result:
    from quire.engine.handover import write_handover

    async with open_conversation(target) as conversation:
        engine = conversation.engine
        handover = await write_handover(
            engine,
            conversation.id,
            branch=conversation.branch,
            max_tokens=max_tokens,
        )
    written_by = f"written by {handover.model}" if handover.model is not None else "extracted"
    print_note(f"{handover.tokens:,} of at most {handover.max_tokens:,} tokens, {written_by}.")
    # Without wrapped lines: it is input of an agent.
    return Result(handover, lambda _: [Verbatim(handover.text)])


class _Source(NamedTuple):
    """What a session is written from."""

    record: "ConversationRecord"
    branch: int
    last: int
    history: "AdaptedHistory"


async def _read_source(target: CommandTarget, program: str) -> _Source:
    name, last = target.conversation, None
    async with open_store(target.overrides) as store:
        numbered = _NUMBERED_NAME.fullmatch(name or "")
        if name is not None and numbered is not None:
            try:
                await store.get_conversation(name)
            except ConversationNotFound:
                name, last = numbered[1] or None, int(numbered[2])
        conversation = await resolve_conversation_id(store, name)
        branch = await find_branch(store, conversation, target.branch)
        if last is not None and not 0 < last <= branch.head_seq:
            raise InvalidRequest(f"{conversation!r} has no entry #{last}; its newest one is #{branch.head_seq}.")
        last = last or branch.head_seq
        [record] = await store.fill_titles(await store.get_conversation(conversation))
        history = await read_history(store, record, branch=branch.number, last=last, program=program)
    if not history.messages:
        raise InvalidRequest(f"{conversation!r} has no message up to #{last} that an agent could continue from.")
    return _Source(record, branch.number, last, history)


async def read_history(
    store: "SqlStore", record: "ConversationRecord", *, branch: int, last: int, program: str
) -> "AdaptedHistory":
    """Reads the context after entry `last` of a branch, in a form that the agent takes."""
    from base64 import b64encode
    from collections import Counter

    from quire.errors import BlobNotFound
    from quire.model.ids import now
    from quire.resume.history import adapt_history, select_messages
    from quire.resume.registry import find_writer

    left_out = Counter[str]()
    messages = select_messages(await store.read_range(record.id, branch=branch, last=last), left_out)
    blobs: dict[str, str] = {}
    for digest in {digest for each in messages for digest in each.message.blob_digests()}:
        # What was purged is described.
        with suppress(BlobNotFound):
            blobs[digest] = b64encode((await store.get_blob(digest)).data).decode()
    client = record.origin.client if record.origin is not None else None
    history = adapt_history(messages, find_writer(program).traits, client=client, load_blob=blobs.get, now=now())
    return history._replace(changes=left_out + history.changes)


def _write_session(source: _Source, program: str) -> "tuple[ResumedSessionSchema, NativeSession]":
    """Writes the session into the folder of the conversation's project, or into the current one."""
    from quire.cli.paths import get_sessions_folder
    from quire.resume.registry import find_writer
    from quire.resume.session import SessionPlace, write_session
    from quire.schemas.records import ResumedSessionSchema

    record, branch, last, history = source
    project = record.origin.project if record.origin is not None else None
    # A project of another machine has no folder here.
    folder = Path(project) if project is not None and Path(project).is_dir() else Path.cwd()
    place = SessionPlace(folder.resolve(), os.environ, get_sessions_folder(), record.title)
    session = find_writer(program).build_session(history, place)
    write_session(session)
    steps = [(program, *arguments) for arguments in (session.import_arguments, session.arguments) if arguments]
    document = ResumedSessionSchema(
        conversation=record.id,
        branch=branch,
        last=last,
        program=program,
        session=session.id,
        path=str(session.path),
        folder=str(place.folder),
        command=" && ".join(shlex.join(step) for step in (("cd", str(place.folder)), *steps)),
        messages=len(history.messages),
        changes=dict(history.changes),
    )
    return document, session


async def _record_session(document: "ResumedSessionSchema", program: str, overrides: Sequence[str] | None) -> None:
    """Records what the session continues, so that its import adds what the agent says next to this conversation."""
    from quire.log.imports import ContinuedSession, make_conversation_id
    from quire.model.ids import now
    from quire.resume.registry import find_writer

    imported = make_conversation_id(find_writer(program).traits.source, document.session)
    continued = ContinuedSession(document.conversation, document.branch, document.last, now())
    async with open_store(overrides) as store:
        await store.imports.record_continued(imported, continued)


def _start(program: str, session: "NativeSession", folder: Path, overrides: Sequence[str] | None) -> NoReturn:
    """Runs the agent in the session's folder like `quire run`, and ends with its exit code."""
    from quire.cli import run

    os.chdir(folder)
    executable = shutil.which(program)
    if executable is not None and session.import_arguments:
        subprocess.run([executable, *session.import_arguments], check=True)  # noqa: S603 (the user chose it)
    run.command(program, list(session.arguments), overrides=list(overrides or ()))
    raise typer.Exit
