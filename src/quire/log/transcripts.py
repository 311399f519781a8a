"""Transcripts of agents as they wrote them: opaque lines, returned as they were stored.

An agent resumes a session from its lines, while the messages made from them are entries of a conversation. A purge in
that conversation deletes its transcript, because a line may repeat the purged text anywhere.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, select, update

from quire.db.dialects import insert_or_ignore, insert_rows
from quire.db.schema import transcript_lines, transcripts
from quire.db.store_part import StorePart, read, write, write_bulk
from quire.errors import IntegrityViolation, InvalidRequest
from quire.log.row_digests import ROW_DIGEST, has_row_digest, with_row_digest
from quire.log.tenant_masker import mask_text
from quire.model.ids import now

MAX_KEY_BYTES = 500
"""Maximum length of each part of a key and of a line's id: PostgreSQL indexes them."""
_LOOKUP_BATCH_SIZE = 500


class TranscriptKey(NamedTuple):
    project: str
    session: str
    subpath: str = ""
    """Path of a sub-agent's transcript within the session; empty for the session's own."""


class TranscriptLine(NamedTuple):
    id: str | None
    """Idempotency key: a line whose id is stored is not stored again."""
    text: str


class TranscriptRecord(NamedTuple):
    session: str
    modified_at: int
    """Microseconds since 1970."""
    summary: str | None


SummaryFold = Callable[[str | None, Sequence[str], int], str]
"""Computes the summary from the one before, the new lines and the time of the change."""


def append_lines(
    connection: Connection,
    tenant: str,
    key: TranscriptKey,
    lines: Sequence[TranscriptLine],
    *,
    fold_summary: SummaryFold | None = None,
) -> int:
    """Appends the lines whose ids are not stored yet. Returns their number."""
    for text in (*key, *(line.id or "" for line in lines)):
        if len(text.encode(errors="replace")) > MAX_KEY_BYTES or "\x00" in text:
            raise InvalidRequest(f"A key of a transcript has at most {MAX_KEY_BYTES} bytes and no NUL: {text[:80]!r}…")
    lines = [line._replace(text=mask_text(connection, line.text)) for line in lines]
    at = now()
    row = with_row_digest(
        transcripts,
        {"tenant": tenant, **key._asdict(), "conversation": None, "line_count": 0, "modified_at": at, "summary": None},
    )
    connection.execute(insert_or_ignore(connection, transcripts), row)
    # The lock serializes the writers of a transcript, for its line numbers and its summary.
    query = select(transcripts).where(*_match(transcripts, tenant, key)).with_for_update()
    stored = connection.execute(query).mappings().one()
    ids = [line.id for line in lines if line.id is not None]
    known: set[str] = set()
    for start in range(0, len(ids), _LOOKUP_BATCH_SIZE):
        known_query = select(transcript_lines.c.uuid).where(
            *_match(transcript_lines, tenant, key),
            transcript_lines.c.uuid.in_(ids[start : start + _LOOKUP_BATCH_SIZE]),
        )
        known.update(connection.execute(known_query).scalars())
    new: list[TranscriptLine] = []
    for line in lines:
        if line.id is None or line.id not in known:
            new.append(line)
            known.add(line.id or "")
    if new:
        insert_rows(
            connection,
            transcript_lines,
            [
                with_row_digest(
                    transcript_lines,
                    {"tenant": tenant, **key._asdict(), "number": number, "uuid": line.id, "line": line.text},
                )
                for number, line in enumerate(new, stored["line_count"] + 1)
            ],
        )
    summary = stored["summary"]
    if fold_summary is not None:
        summary = fold_summary(summary, [line.text for line in new], at)
    changes = {"line_count": stored["line_count"] + len(new), "modified_at": at, "summary": summary}
    _update(connection, tenant, key, stored, changes)
    return len(new)


def load_lines(connection: Connection, tenant: str, key: TranscriptKey) -> list[str] | None:
    """The lines in their order, or None if there never were any."""
    if connection.execute(select(transcripts.c.session).where(*_match(transcripts, tenant, key))).first() is None:
        return None
    query = select(transcript_lines).where(*_match(transcript_lines, tenant, key)).order_by(transcript_lines.c.number)
    rows = connection.execute(query).mappings().all()
    if any(not has_row_digest(transcript_lines, row) for row in rows):
        raise IntegrityViolation(
            f"A line of the transcript of {key.session!r} is not as it was recorded; restore it from a backup. "
            "`quire conversation verify --all` lists all changes."
        )
    return [row["line"] for row in rows]


def list_sessions(connection: Connection, tenant: str, project: str) -> list[TranscriptRecord]:
    """The sessions of a project, without the transcripts of sub-agents."""
    query = select(transcripts.c.session, transcripts.c.modified_at, transcripts.c.summary).where(
        transcripts.c.tenant == tenant, transcripts.c.project == project, transcripts.c.subpath == ""
    )
    return [TranscriptRecord._make(row) for row in connection.execute(query)]


def list_subpaths(connection: Connection, tenant: str, project: str, session: str) -> list[str]:
    query = select(transcripts.c.subpath).where(
        transcripts.c.tenant == tenant,
        transcripts.c.project == project,
        transcripts.c.session == session,
        transcripts.c.subpath != "",
    )
    return list(connection.execute(query.order_by(transcripts.c.subpath)).scalars())


def delete_transcript(connection: Connection, tenant: str, key: TranscriptKey) -> None:
    """Deletes a transcript. Without a subpath, also the transcripts of the session's sub-agents."""
    for table in (transcript_lines, transcripts):
        conditions = _match(table, tenant, key)
        connection.execute(delete(table).where(*(conditions if key.subpath else conditions[:-1])))


def link_transcript(connection: Connection, tenant: str, key: TranscriptKey, conversation: str) -> None:
    """Records the conversation that was made from this transcript, so that a purge finds the transcript."""
    query = select(transcripts).where(*_match(transcripts, tenant, key)).with_for_update()
    stored = connection.execute(query).mappings().first()
    if stored is not None:
        _update(connection, tenant, key, stored, {"conversation": conversation})


def _update(
    connection: Connection, tenant: str, key: TranscriptKey, stored: Mapping[Any, Any], changes: Mapping[str, object]
) -> None:
    """Updates the row of a transcript. A row that was changed by other means keeps its wrong digest."""
    digest = stored[ROW_DIGEST]
    if has_row_digest(transcripts, stored):
        digest = with_row_digest(transcripts, {**stored, **changes})[ROW_DIGEST]
    values = {**changes, ROW_DIGEST: digest}
    connection.execute(update(transcripts).where(*_match(transcripts, tenant, key)).values(**values))


def delete_linked(connection: Connection, tenant: str, conversation: str) -> None:
    """Deletes the transcripts that this conversation was made from."""
    query = select(transcripts.c.project, transcripts.c.session, transcripts.c.subpath).where(
        transcripts.c.tenant == tenant, transcripts.c.conversation == conversation
    )
    delete_exact(connection, tenant, [TranscriptKey._make(row) for row in connection.execute(query)])


def delete_exact(connection: Connection, tenant: str, keys: Collection[TranscriptKey]) -> None:
    """Deletes these transcripts. The transcripts of their sub-agents stay."""
    for key in keys:
        for table in (transcript_lines, transcripts):
            connection.execute(delete(table).where(*_match(table, tenant, key)))


def _match(table: Any, tenant: str, key: TranscriptKey) -> tuple[ColumnElement[bool], ...]:
    return (
        table.c.tenant == tenant,
        table.c.project == key.project,
        table.c.session == key.session,
        table.c.subpath == key.subpath,
    )


class Transcripts(StorePart):
    """Transcripts of agents as they wrote them."""

    append = write(append_lines)
    load = read(load_lines)
    list = read(list_sessions)
    list_subpaths = read(list_subpaths)
    link = write(link_transcript)

    async def delete(self, key: TranscriptKey) -> None:
        """Deletes a transcript, and its text from the disk. Messages in the log stay."""
        await self.run(write_bulk, delete_transcript, key)
        await self.base.database.scrub()
