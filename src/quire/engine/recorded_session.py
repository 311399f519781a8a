"""Matches the items of a transcript with what the gateway recorded of the same session.

The two differ in what an agent adds to a request, such as reminders, so messages are compared by their words. A reply
in the log has its input there too: the request that it answers was recorded with it. So what comes before a recorded
reply is never imported, whatever form the agent gave it. A question without a reply waits for one, because its request
may not have ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from quire.log.imports import ImportItem, Position
from quire.log.secret_masker import SecretMasker
from quire.log.types import MAIN_BRANCH, Branch, ConversationRecord
from quire.model import Entry, EntryMetadata, Message, TextPart
from quire.model.json_values import get_object, get_text
from quire.store import SqlStore
from quire.wire.agent_boilerplate import remove_boilerplate
from quire.wire.client_messages import normalize_message

READ_ENTRIES = 500
"""Entries of a recorded conversation that are in memory at a time."""
_START: Position = (MAIN_BRANCH, 0)


class _RecordedMessage(NamedTuple):
    position: Position
    before: Position
    """The last message before it that has words."""


class RecordedSession:
    """Digests of the messages of a recorded conversation, in all branches, by which items are found."""

    def __init__(self, record: ConversationRecord, masker: SecretMasker | None = None) -> None:
        self.record, self._masker = record, masker
        self._agent = record.origin.client if record.origin is not None else None
        self._messages: defaultdict[bytes, list[_RecordedMessage]] = defaultdict(list)
        self._named_replies: dict[bytes, Position] = {}
        """Replies by their words and an id that their provider gave."""
        self._heads: dict[Position, Position] = {}
        """The newest entry of each branch, by its last message that has words."""
        self._purged: tuple[int, Position] | None = None
        """Time and position of the newest purged entry: what was said before it does not come back."""
        self._branches: dict[int, Branch] = {}
        self._last_words: dict[Position, Position] = {}
        """The last message that has words, by the position of each entry."""
        self._pending: dict[str, ImportItem] = {}
        """Items without a reply yet, which may be in a later batch."""

    @classmethod
    async def load(cls, store: SqlStore, record: ConversationRecord) -> "RecordedSession":
        session = cls(record, store.masker)
        session._branches = {branch.number: branch for branch in await store.list_branches(record.id)}
        for branch in session._branches.values():
            seq = branch.fork_seq
            before = session.find_words(branch.number, seq) if seq else _START
            while entries := await store.read_range(record.id, branch=branch.number, first=seq + 1, limit=READ_ENTRIES):
                for entry in entries:
                    before = session._last_words[entry.branch, entry.seq] = session._add(entry, before)
                seq = entries[-1].seq
            session._heads[before] = (branch.number, seq)
        return session

    def find_words(self, branch: int, seq: int) -> Position:
        """The last message of a branch up to an entry that has words."""
        return self._last_words.get((self._branches[branch].find_owner(seq) or MAIN_BRANCH, seq), _START)

    def _add(self, entry: Entry, before: Position) -> Position:
        """Adds an entry. Returns the last message that has words."""
        if entry.purged_at is not None:
            purged = (entry.created_at, (entry.branch, entry.seq))
            self._purged = max(self._purged or purged, purged)
            return purged[1]
        if entry.kind != "message":
            return before
        words = self._digest_words(entry.message)
        if words is None:
            return before
        position = (entry.branch, entry.seq)
        self._messages[words].append(_RecordedMessage(position, before))
        for key in _list_reply_keys(words, entry.message, entry.raw_metadata):
            self._named_replies.setdefault(key, position)
        return position

    def _digest_words(self, message: Message) -> bytes | None:
        """Digest of what was said, or None if the agent wrote all of it."""
        if self._masker is not None:
            message = self._masker.mask_message(message)
        spoken = normalize_message(remove_boilerplate(message, agent=self._agent))
        return sha256(spoken.canonical_json().encode()).digest() if spoken.parts else None

    def count_replies(self, items: Iterable[ImportItem]) -> int:
        """The number of these items that are replies of this conversation."""
        replies = (Message.parse(item.raw) for item in items if item.role == "assistant")
        return sum(1 for reply in replies if self._digest_words(reply) in self._messages)

    def select_new(self, items: Sequence[ImportItem], positions: dict[str, Position]) -> tuple[list[ImportItem], int]:
        """The transcript's next items that are not recorded, and the number of recorded ones.

        `positions` has the place of each item that is in the log. Recorded items are added to it.
        """
        new: list[ImportItem] = []
        recorded_count = 0
        for item in items:
            self._pending[item.id] = item
            if item.role == "assistant":
                step = self._take_step(item)
                count = self._count_recorded(step, positions)
                recorded_count += count
                new += step[count:]
                start = positions.get(step[count].parent or "") if count < len(step) else None
                if start in self._heads:
                    # Only a compaction, a pin or what the agent wrote itself follows in that branch.
                    positions[step[count].parent or ""] = self._heads[start]
        return new, recorded_count

    def _take_step(self, reply: ImportItem) -> list[ImportItem]:
        """Takes the reply and what leads to it since the last reply, oldest first."""
        step: list[ImportItem] = []
        item: ImportItem | None = reply
        while item is not None:
            step.append(self._pending.pop(item.id))
            item = self._pending.get(item.parent or "")
        return step[::-1]

    def _count_recorded(self, step: Sequence[ImportItem], positions: dict[str, Position]) -> int:
        """The number of the step's first items that are recorded, whose positions it adds.

        Messages that the agent wrote itself are recorded if a later item is.
        """
        before = positions.get(step[0].parent) if step[0].parent is not None else _START
        places = dict[str, Position]()
        count, is_connected = 0, before is not None
        for number, item in enumerate(step, 1):
            message = Message.parse(item.raw)
            words = self._digest_words(message) if item.compaction is None else None
            if words is None:
                continue
            place = next((each.position for each in self._messages.get(words, ()) if each.before == before), None)
            if place is None or not is_connected:
                is_connected = False
                keys = _list_reply_keys(words, message, item.metadata)
                place = next((self._named_replies[key] for key in keys if key in self._named_replies), None)
                if place is None:
                    continue
            count, before, places[item.id] = number, place, place
        if self._purged is not None and count < len(step) and step[-1].at <= self._purged[0]:
            count, places[step[-1].id] = len(step), self._purged[1]
        branch, seq = places.get(step[count - 1].id, _START) if count else _START
        for item in step[:count]:
            positions[item.id] = places.get(item.id, (branch, max(seq - 1, 0)))
        return count


def _list_reply_keys(words: bytes, message: Message, raw_metadata: str | None) -> Iterator[bytes]:
    """The words of a reply with each id that its provider gave to the response, to its text or to a call."""
    if message.role != "assistant":
        return
    ids = [call.id for call in message.tool_calls]
    usage = EntryMetadata.parse(raw_metadata).usage if raw_metadata is not None else None
    ids.append(get_text(get_object((usage and usage.provider_fields) or {}, "response"), "id") or "")
    for part in message.parts:
        if isinstance(part, TextPart):
            fields = get_object(part.provider_fields or {}, "responses")
            ids.append(get_text(get_object(fields, "message"), "id") or "")
    yield from (words + each.encode() for each in ids if each)
