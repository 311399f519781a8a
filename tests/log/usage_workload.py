"""Random operations on a store that the usage roll-up must follow, and an independent recount of the log."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import count
from random import Random

from infra.builders import export_lines
from quire.log import (
    Branch,
    ConversationOrigin,
    ConversationRecord,
    ReplyRecord,
)
from quire.log.imports import ImportBatch, ImportItem
from quire.model import Compaction, Decision, DocumentReference, Draft, Manifest, Message, Policy, Span, Usage
from quire.model.entry_metadata import EntryMetadata, TurnTotals
from quire.model.manifest import SlotUsage
from quire.model.messages import PURGED_TEXT, TextPart, ToolCallPart
from quire.store import SqlStore
from quire.usage.contribution import DAY_MICROSECONDS

MODELS = ("gpt-4o", "claude-sonnet-4-5", "local")
DOCUMENTS = ("notes/otters.md", "notes/tides.md", "plan.md", "missing")
RULES = ("style", "secrets", "unused")
TOOLS = ("search", "read_file")

RecountKey = tuple[str, str]
"""Dimension and name."""


class Workload:
    """Applies random operations to the store of one tenant."""

    def __init__(self, store: SqlStore, seed: int) -> None:
        self.store, self._random, self._numbers = store, Random(seed), count(1)
        self._ids: list[str] = []

    async def run(self, steps: int) -> None:
        operations: list[Callable[[], Awaitable[object]]] = [
            self._create, self._append, self._append, self._record, self._record, self._record, self._compact,
            self._fork, self._purge_some, self._purge_all, self._purge_value, self._copy, self._import, self._count,
            self._count,
        ]  # fmt: skip
        await self._create()
        for _ in range(steps):
            await self._random.choice(operations)()

    async def _create(self) -> None:
        number = next(self._numbers)
        origin = ConversationOrigin(client=self._random.choice(["codex", None]), project=f"/project/{number % 2}")
        record = await self.store.create_conversation(f"c{number}", origin=origin)
        self._ids.append(record.id)

    async def _pick_branch(self) -> Branch:
        return self._random.choice(await self.store.list_branches(self._random.choice(self._ids)))

    async def _append(self) -> None:
        branch = await self._pick_branch()
        drafts = [self._question(), self._reply()]
        await self.store.append(branch.conversation, *drafts, branch=branch.number)

    async def _record(self) -> None:
        branch = await self._pick_branch()
        record = ReplyRecord(
            drafts=(self._question(), self._reply()), build_manifest=lambda stored: self._manifest(stored[-1].seq)
        )
        arguments = {"branch": branch.number, "after": branch.head_path}
        if self._random.random() < 0.3:
            # The reply is in the log before its manifest, as after a lost connection.
            await self.store.append(branch.conversation, *record.drafts, **arguments)
            await self._count()
        for _ in range(self._random.choice([1, 2])):
            await self.store.record_reply(branch.conversation, record, **arguments)

    async def _compact(self) -> None:
        branch = await self._pick_branch()
        if branch.head_seq > 1:
            number, active = branch.state.compaction_count + 1, branch.state.active_compaction
            body = Compaction(
                number=number, covers=Span(first=1, last=1), summary="s", model="small", tokens_before=90,
                tokens_after=20, usage=Usage(input_tokens=70, output_tokens=9), cost_usd=self._random.random(),
                supersedes=active.seq if active else None,
            )  # fmt: skip
            await self.store.append(branch.conversation, body, branch=branch.number)

    async def _fork(self) -> None:
        branch = await self._pick_branch()
        await self.store.fork(branch.conversation, at=self._random.randint(0, branch.head_seq), branch=branch.number)

    async def _purge_some(self) -> None:
        branch = await self._pick_branch()
        entries = await self.store.read_range(branch.conversation, branch=branch.number, kinds=["message"])
        if entries:
            seqs = {self._random.choice(entries).seq for _ in range(2)}
            await self.store.purge(branch.conversation, seqs, branch=branch.number)

    async def _purge_all(self) -> None:
        await self.store.purge(self._random.choice(self._ids))

    async def _purge_value(self) -> None:
        await self.store.purge_value(self._random.choice([DOCUMENTS[0], "/project/1"]))

    async def _copy(self) -> None:
        lines = await export_lines(self.store, self._random.choice(self._ids))
        record = await self.store.import_conversation(lines, as_id=f"copy{next(self._numbers)}")
        self._ids.append(record.id)

    async def _import(self) -> None:
        number = next(self._numbers)
        metadata = EntryMetadata(usage=Usage(model="imported", input_tokens=5), cost_usd=0.125).canonical_json()
        raw = Message.assistant(f"imported {number}").canonical_json()
        item = ImportItem(
            f"item {number}", None, raw, "assistant", at=5 * DAY_MICROSECONDS, digest=sha256(raw.encode()).digest(),
            metadata=metadata,
        )  # fmt: skip
        record = ConversationRecord(f"imported{number}", "", 5, 5, ConversationOrigin(client="claude-code"))
        await self.store.imports.append([ImportBatch(record, [item], {})])
        self._ids.append(record.id)

    async def _count(self) -> None:
        await self.store.usage.count(max_entries=self._random.choice([1, 3, 500]))

    def _question(self) -> Draft:
        names = self._random.sample(DOCUMENTS, self._random.randint(0, 2))
        references = tuple(DocumentReference(link=name, path=None if name == "missing" else name) for name in names)
        return Draft(
            body=Message.user(f"question {next(self._numbers)}"), references=references, created_at=self._time()
        )

    def _reply(self) -> Draft:
        calls = tuple(
            ToolCallPart(id=f"call{next(self._numbers)}", name=self._random.choice(TOOLS))
            for _ in range(self._random.choice([0, 0, 2]))
        )
        usage = Usage(
            model="reported", input_tokens=self._random.randint(1, 9_000), output_tokens=7, cache_read_tokens=3
        )
        # The totals of the turn count its calls again.
        turn = None if calls else TurnTotals(steps=1, usage=usage, cost_usd=self._random.random())
        text = TextPart(text=f"answer {next(self._numbers)}")
        return Draft(
            body=Message(role="assistant", parts=(text, *calls)), usage=usage, turn=turn, created_at=self._time(),
            cost_usd=self._random.random(), cost_incomplete=self._random.random() < 0.3,
        )  # fmt: skip

    def _time(self) -> int:
        return self._random.randint(1, 4) * DAY_MICROSECONDS + 17

    def _manifest(self, seq: int) -> Manifest:
        decisions = [
            Decision(slot="newest", kind="document", included=True, reason="referenced", tokens=11, name=DOCUMENTS[0]),
            Decision(slot="tools", kind="tool", included=True, reason="always", tokens=5, name="search"),
            Decision(slot="system", kind="rule", included=True, reason="always", tokens=2, name=RULES[0]),
            Decision(slot="system", kind="rule", included=False, reason="not_added", name=RULES[2]),
        ]
        if seq > 3:
            span = Span(first=1, last=2)
            decisions.append(
                Decision(slot="recall", kind="message", included=True, reason="recalled", tokens=13, span=span)
            )
        return Manifest(
            renderer=1, conversation="c", branch=0, head=seq - 1, counter="c", exact=True, total_tokens=40,
            policy=Policy(model=MODELS[seq % 3], wire_format="chat", window=1_000), full_history_tokens=0,
            slots=(SlotUsage(slot="newest", budget=100, used=30), SlotUsage(slot="recall", budget=9, used=0)),
            max_input_tokens=488, trigger_tokens=488, decisions=tuple(decisions), stable_messages=0, digest="",
        )  # fmt: skip


async def recount(store: SqlStore) -> dict[RecountKey, Counter[str]]:
    """Counts the whole log from the exported JSON, without the roll-up or its code."""
    totals: dict[RecountKey, Counter[str]] = {}
    for record in [await store.get_conversation(each) for each in await store.list_conversation_ids()]:
        lines = [json.loads(line) for line in await export_lines(store, record.id)]
        manifests = {(each["branch"], each["seq"]): each["manifest"] for each in lines if each["line"] == "manifest"}
        for entry in lines:
            if entry["line"] != "entry" or "purged_at" in entry:
                continue
            manifest = manifests.get((entry["branch"], entry["seq"]))
            origin = record.origin
            for key, counts in _recount_entry(entry, manifest):
                names = {"project": origin and origin.project, "source": origin and origin.client}
                dimension, name = key[0], names.get(key[0], key[1]) or ""
                totals.setdefault((dimension, name), Counter()).update(counts)
    return {key: +counts for key, counts in totals.items()}


def _recount_entry(
    entry: dict[str, object], manifest: dict[str, object] | None
) -> list[tuple[RecountKey, Counter[str]]]:
    notes: dict = entry.get("notes") or {}
    body: dict = entry["body"]
    rows = [
        (("document", name), Counter(uses=1))
        for name in {each.get("path") or each["link"] for each in notes.get("references") or ()}
    ]
    counts, model = Counter[str](), ""
    if entry["kind"] == "compaction":
        usage = body["usage"]
        counts = Counter(compactions=1, compacted_tokens=70, requests=1, **_tokens(usage))
        counts["cost_nanos"] = round(body["cost_usd"] * 1e9)
        model = body["model"]
    elif entry["kind"] == "message" and body["role"] == "assistant":
        calls = [part["name"] for part in body["parts"] if part["type"] == "tool_call"]
        rows += [(("tool", name), Counter(uses=1)) for name in calls]
        usage = notes.get("usage") or {}
        counts = Counter(requests=1, turns=not calls, cost_nanos=round(notes["cost_usd"] * 1e9), **_tokens(usage))
        if notes.get("cost_incomplete"):
            tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
            counts += Counter(unpriced_turns=not calls, unpriced_requests=1, unpriced_tokens=tokens)
        if manifest is None and "turn" not in notes:
            counts["imported_nanos"] = counts["cost_nanos"]
        model = usage.get("model", "")
        if manifest is not None:
            model = manifest["policy"]["model"]
            rows.append((("slot", "newest"), Counter(requests=1, tokens=30)))
            for decision in manifest["decisions"]:
                if decision["kind"] == "message":
                    counts += Counter(recalled_messages=2, recalled_tokens=13)
                elif decision["name"] != PURGED_TEXT:
                    included = decision["included"]
                    item = Counter(candidates=1, requests=included, tokens=decision.get("tokens", 0) * included)
                    rows.append(((decision["kind"], decision["name"]), item))
    if counts:
        rows += [(("all", ""), counts), (("model", model), counts), (("project", ""), counts), (("source", ""), counts)]
    return rows


def _tokens(usage: dict[str, int]) -> dict[str, int]:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return {name: usage.get(name, 0) for name in names}
