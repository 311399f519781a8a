"""A transcript to share with other people, readable and with secrets masked, and the search for those secrets.

A shared transcript is Markdown or JSON and not a backup: a masked message has another digest, so a log with masks could
not be verified. It cannot be imported, and it says that it was masked. Thinking and attachments are left out, because
neither can be masked reliably.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from quire.concurrency.worker_threads import run_portable
from quire.log import Branch, ConversationRecord
from quire.model import (
    Compaction,
    Entry,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.model.secrets import find_secrets, mask_secrets, replace_secrets
from quire.rows.control_characters import escape_control_characters
from quire.store import SqlStore
from quire.store.export_import import EXPORT_BATCH_SIZE

ShareFormat = Literal["markdown", "json"]

MAX_ATTACHMENT_BYTES = 10_000_000
"""An attachment that is larger is not searched for secrets."""

_BACKTICKS = re.compile(r"`{3,}+")
_MASK_NOTE = "Secrets of known formats are masked; thinking and attachments are left out."


class SecretLocation(NamedTuple):
    conversation: str
    branch: int
    seq: int
    kind: str
    mask: str
    """Public start of the secret and its kind; never the secret."""


class SharedTranscript:
    """Writes one branch in pieces; `masked_count` is complete after the last one."""

    def __init__(self, store: SqlStore, record: ConversationRecord, branch: Branch, *, format: ShareFormat) -> None:
        self._store, self._record, self._branch = store, record, branch
        self.title = " ".join(mask_secrets(record.title).split()) or record.id
        self._format: ShareFormat = format
        self._tags = ", ".join(record.tags)
        self.masked_count = len(find_secrets(record.title)) + len(find_secrets(self._tags))

    async def write(self) -> AsyncIterator[str]:
        is_first, is_markdown = True, self._format == "markdown"
        tags = mask_secrets(self._tags)
        head = {"format": "quire-transcript", "masked": True, "conversation": self._record.id, "title": self.title}
        head |= {"tags": tags.split(", ")} if tags else {}
        tag_line = f"Tags: {tags}\n\n" if tags else ""
        yield escape_control_characters(
            f"# {self.title}\n\n{tag_line}_{_MASK_NOTE}_\n"
            if is_markdown
            else f'{json.dumps(head, ensure_ascii=False)[:-1]}, "messages": [\n'
        )
        for first in range(1, self._branch.head_seq + 1, EXPORT_BATCH_SIZE):
            last = min(first + EXPORT_BATCH_SIZE - 1, self._branch.head_seq)
            for entry in await self._store.read_range(
                self._record.id, branch=self._branch.number, first=first, last=last, kinds=["message", "compaction"]
            ):
                text, count = await run_portable(len(entry.raw), _write_masked, entry, self._format)
                self.masked_count += count
                if text:
                    yield text if is_first or is_markdown else f",\n{text}"
                    is_first = False
        count = self.masked_count
        yield f"\n---\n\n_{count} secrets masked._\n" if is_markdown else f'\n], "masked_secrets": {count}}}\n'


def _write_masked(entry: Entry, format: ShareFormat) -> tuple[str, int]:
    """The text of an entry, and the number of secrets in it that are masked."""
    writer = _EntryWriter(format)
    return writer.write(entry), writer.masked_count


class _EntryWriter:
    def __init__(self, format: ShareFormat) -> None:
        self._format = format
        self.masked_count = 0

    def write(self, entry: Entry) -> str:
        body = entry.body
        if isinstance(body, Compaction):
            speaker, pieces = "summary", [self.mask(body.summary or "")]
        elif isinstance(body, Message):
            speaker, pieces = body.name or body.role, [self._write_part(part) for part in body.parts]
        else:
            return ""
        text = "\n\n".join(piece for piece in pieces if piece)
        if not text:
            return ""
        at = entry.time.isoformat(timespec="seconds")
        speaker = " ".join(self.mask(speaker).split())
        if self._format == "markdown":
            return f"\n## #{entry.seq} {speaker}, {at}\n\n{text}\n"
        piece = {"seq": entry.seq, "speaker": speaker, "at": at, "text": text}
        return escape_control_characters(json.dumps(piece, ensure_ascii=False))

    def _write_part(self, part: Part) -> str:
        match part:
            case TextPart(text=text):
                return self.mask(text)
            case ToolCallPart(name=name, arguments=arguments):
                return f"Called `{self.mask(name)}`:\n\n{_fence(self.mask(arguments))}"
            case ToolResultPart(content=content):
                texts = [self.mask(piece.text) for piece in content if isinstance(piece, TextPart)]
                return _fence("\n".join(texts)) if texts else ""
            case FilePart(name=name):
                return f"[file {self.mask(name)}]" if name else "[file]"
            case ImagePart():
                return "[image]"
            case ThinkingPart():
                return ""

    def mask(self, text: str) -> str:
        secrets = find_secrets(text)
        self.masked_count += len(secrets)
        masked = replace_secrets(text, secrets)
        # JSON is escaped as a whole.
        return escape_control_characters(masked.replace("\r\n", "\n")) if self._format == "markdown" else masked


def _fence(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    fence = "`" * max([3, *(run.end() - run.start() + 1 for run in _BACKTICKS.finditer(text))])
    return f"{fence}\n{text}\n{fence}"


async def find_conversation_secrets(store: SqlStore, conversation: str) -> AsyncIterator[SecretLocation]:
    """Secrets of all branches and their text attachments, in order of branches and entries; each secret of an entry
    once."""
    for branch in await store.list_branches(conversation):
        for first in range(branch.fork_seq + 1, branch.head_seq + 1, EXPORT_BATCH_SIZE):
            last = min(first + EXPORT_BATCH_SIZE - 1, branch.head_seq)
            for entry in await store.read_range(conversation, branch=branch.number, first=first, last=last):
                texts = [entry.raw, entry.raw_metadata or ""]
                if entry.kind == "message" and '"blob":"' in entry.raw:
                    for digest in sorted(set(entry.message.blob_digests())):
                        blob = await store.get_blob(digest)
                        name = blob.media_type.split(";")[0]
                        is_text = name.startswith("text/") or name.endswith(("json", "xml", "yaml", "toml"))
                        if is_text and len(blob.data) <= MAX_ATTACHMENT_BYTES:
                            texts.append(blob.data.decode(errors="replace"))
                masks: dict[str, tuple[str, str]] = {}
                for text in texts:
                    for match in find_secrets(text):
                        masks.setdefault(text[match.start : match.end], (match.kind, match.mask))
                for kind, mask in dict.fromkeys(masks.values()):
                    yield SecretLocation(conversation, entry.branch, entry.seq, kind, mask)
