"""What Quire stored of imported sessions, as the facts that the readers `corpus_*.py` make of the files."""

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from corpus_facts import Compaction, Facts, Item, Request, Tokens, digest_call, digest_json, digest_texts
from quire.engine.file_import import make_conversation_id
from quire.log.types import Branch, ConversationRecord
from quire.model import Compaction as StoredCompaction
from quire.model import Entry, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.json_values import get_object
from quire.rows.boilerplate import strip_text
from quire.store import SqlStore
from quire.wire.agent_boilerplate import remove_boilerplate

BEGINNING = "beginning"
"""Stands among what an import had to leave out of a conversation whose file begins in the middle."""
PAGE_SIZE = 500
NANOS_PER_DOLLAR = 1e9


class StoredSessions:
    """The conversations of a store by program and session, with the costs of the usage roll-up."""

    def __init__(self, store: SqlStore, database: Path) -> None:
        self._store, self._database = store, database
        self.records: dict[str, ConversationRecord] = {}
        self.costs: dict[str, float] = {}
        self._tokens: defaultdict[str, dict[str, Tokens]] = defaultdict(dict)

    async def load(self) -> None:
        while await self._store.usage.count():
            pass
        page = await self._store.list_conversations(limit=PAGE_SIZE)
        while page:
            self.records.update((each.id, each) for each in page)
            page = await self._store.list_conversations(limit=PAGE_SIZE, before=page[-1])
        sums = "sum(requests), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens)"
        with sqlite3.connect(self._database) as connection:
            rows = connection.execute(
                f"SELECT conversation, name, sum(cost_nanos), {sums} FROM quire_usage_contributions"
                " WHERE dimension = 'model' GROUP BY conversation, name"
            )
            for conversation, model, cost, *counts in rows:
                self.costs[conversation] = self.costs.get(conversation, 0.0) + cost / NANOS_PER_DOLLAR
                # A reply whose file holds no usage is a request without a known model and price.
                if any(counts[1:]) or model:
                    self._tokens[conversation][model or "unknown"] = Tokens(*counts)

    def find(self, program: str, session: str) -> str | None:
        """Id of the conversation that holds the session itself."""
        id_ = make_conversation_id(program, session)
        return id_ if id_ in self.records else None

    def list_agents(self, program: str, session: str) -> list[str]:
        """Ids of the conversations of sub-agents whose lines are in the session's own file."""
        ids = (make_conversation_id(program, f"{session}/{name}") for name in ("side-chains",))
        return [id_ for id_ in ids if id_ in self.records]

    async def read(self, program: str, session: str, id_: str) -> Facts:
        record = self.records[id_]
        origin = record.origin
        facts = Facts(program, session, parent=origin.parent_agent if origin is not None else None)
        facts.agents = len(self.list_agents(program, session))
        facts.requests = [Request(model, tokens, None) for model, tokens in self._tokens[id_].items()]
        branches = await self._store.list_branches(id_)
        latest = await self._store.match_history((), conversation=id_)
        shown = next(each for each in branches if latest is None or each.number == latest.branch.number)
        is_agent = not record.is_main
        seen = await self._read_branch(shown, program, facts, is_agent=is_agent)
        for branch in branches:
            entries = await self._store.read_range(branch.conversation, branch=branch.number)
            new = [each for each in entries if (each.branch, each.seq) not in seen]
            seen |= {(each.branch, each.seq) for each in new}
            items = [item for entry in new for item in _read_items(entry, program, is_agent=is_agent)]
            for entry in new:
                if entry.kind == "message":
                    facts.add_time(entry.created_at / 1000)
            if branch.number != shown.number and new:
                facts.branches.append(items)
        return facts

    async def _read_branch(self, branch: Branch, program: str, facts: Facts, *, is_agent: bool) -> set[tuple[int, int]]:
        """Adds the entries of the branch that is shown. Returns their positions."""
        items_by_seq: dict[int, list[Item]] = {}
        entries = await self._store.read_range(branch.conversation, branch=branch.number)
        dropped = entries[0].metadata.dropped if entries else None
        facts.begins_in_middle = BEGINNING in (dropped or ())
        for entry in entries:
            items_by_seq[entry.seq] = _read_items(entry, program, is_agent=is_agent)
            facts.path += items_by_seq[entry.seq]
            if entry.kind == "message":
                facts.add_time(entry.created_at / 1000)
            elif entry.kind == "compaction" and isinstance(made := entry.body, StoredCompaction):
                kept = {
                    item.key
                    for seq in made.preserved or ()
                    for item in items_by_seq.get(seq, ())
                    if item.kind != "thinking"
                }
                kind = "opaque" if made.summary is None else "summary"
                digest = "" if made.summary is None else digest_texts([made.summary])
                facts.compactions.append(Compaction(facts.count_replies(), kind, digest, tuple(sorted(kept))))
        return {(entry.branch, entry.seq) for entry in entries}


def _read_items(entry: Entry, program: str, *, is_agent: bool) -> list[Item]:
    if entry.kind != "message":
        return []
    message, items = entry.message, list[Item]()
    reply = f"{entry.branch}:{entry.seq}" if message.role == "assistant" else ""
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            items.append(Item("call", part.id, digest_call(part.name, _read_arguments(part)), "", reply))
        elif isinstance(part, TextPart) and (raw := _read_placeholder(part)):
            items += _read_raw_item(raw, reply)
        elif isinstance(part, ToolResultPart):
            texts = (each.text if isinstance(each, TextPart) else f"[{each.type}]" for each in part.content)
            items.append(Item("result", part.call_id, digest_texts(texts)))
        elif isinstance(part, ThinkingPart) and message.role == "assistant":
            items.append(Item("thinking", digest_texts([part.text]), reply=reply))
        elif isinstance(part, TextPart) and part.text and message.role == "assistant":
            items.append(Item("text", digest_texts([part.text]), reply=reply))
    if message.role in ("user", "system"):
        said = [
            part
            for part in message.parts
            if not isinstance(part, ToolCallPart | ToolResultPart)
            and not (isinstance(part, TextPart) and _read_placeholder(part))
        ]
        texts = (part.text if isinstance(part, TextPart) else f"[{part.type}]" for part in said)
        digest = digest_texts(texts)
        if message.role == "system" and said:
            items.append(Item("system", digest))
        elif message.role == "user" and said:
            is_typed = not is_agent and _has_own_words(message, program)
            items.append(Item("user", digest, by="person" if is_typed else "harness"))
    return items


def _has_own_words(message: Message, program: str) -> bool:
    """Whether the message has more than what a program wrote: the arguments of a command are quoted by the program."""
    own = remove_boilerplate(message, agent=program)
    words: list[str] = []
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    is_quoted = all(not strip_text(text, "user", words) for text in texts)
    has_media = any(not isinstance(part, TextPart | ToolResultPart) for part in own.parts)
    return has_media or (not is_quoted and any(isinstance(part, TextPart) for part in own.parts))


def _read_arguments(call: ToolCallPart) -> object:
    """A call's arguments; of a custom tool, its text."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return call.arguments
    is_custom = get_object(call.provider_fields or {}, "responses").get("type") == "custom_tool_call"
    return arguments["input"] if is_custom else arguments


def _read_placeholder(part: TextPart) -> dict[str, Any]:
    """The item of the provider's that stands as a text with the name of its type, or an empty one."""
    for raw in (part.provider_fields or {}).values():
        if isinstance(raw, dict) and part.text == f"[{raw.get('type')}]":
            return raw
    return {}


def _read_raw_item(raw: dict[str, Any], reply: str) -> list[Item]:
    match raw:
        case {"type": "tool_search_call", "call_id": str(id_)}:
            return [Item("call", id_, digest_call(None, raw.get("arguments")), "", reply)]
        case {"type": "tool_search_output", "call_id": str(id_)}:
            return [Item("result", id_, digest_json(raw.get("tools")))]
        case {"type": "agent_message"}:
            return [Item("text", digest_texts([f"[{raw['type']}]"]), reply=reply)]
        case _:
            return []
