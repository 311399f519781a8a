"""Documents of a request: the ones that a message names, and the application's own, trimmed where they do not fit.

The documents that a message names are injected into it if all of them fit below the target of a compaction. Otherwise
each that is small against the remaining tokens is injected, and a larger one is listed with its summary, for the model
to read with a tool. The decision is stored with the message.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.context_gatherer import RequestContext
from quire.engine.request import PendingMessage
from quire.engine.state import EngineState
from quire.model import Message
from quire.model.entry_metadata import DocumentReference
from quire.model.manifest import Decision
from quire.view.assembly import ViewAssembly
from quire.view.batches import sum_tokens
from quire.view.counted_input import build_block_text
from quire.view.excerpts import excerpt_message, find_largest_limit
from quire.view.inputs import ContextBlock
from quire.view.rendered import MessageCounter
from quire.view.selection import count_spare_tokens
from quire.wire.labels import label_text

if TYPE_CHECKING:
    from quire.context.vault import ReferencedDocument

IMPORT_SHARE = 0.5
"""Share of the remaining tokens up to which a file that a message imports with @path is included in full."""

MIN_TRIMMED_TOKENS = 64
"""A document with less room than this is left out: an excerpt of it would say nothing."""
SPARE_TOKEN_STEPS = 16
"""Steps of the input tokens in which a trimmed document uses spare tokens."""
MAX_CHARS_PER_TOKEN = 16
"""Bounds the search for the longest excerpt. Texts with longer tokens on average are rows of blanks or signs."""


class ResolvedReferences(NamedTuple):
    """A message with its document references, and the decisions about them."""

    pending: PendingMessage
    decisions: tuple[Decision, ...] = ()
    texts: tuple[str, ...] = ()
    """Texts of the injected documents."""


class ReferenceResolver:
    """Resolves document references for the conversations of one engine."""

    def __init__(self, engine: EngineState) -> None:
        self._engine = engine

    async def find_references(self, message: Message) -> "list[ReferencedDocument]":
        """The documents that a user's message names, with their summaries."""
        vault, text = self._engine.vault, message.text
        if vault is None or message.role != "user" or ("[[" not in text and "@" not in text):
            return []
        from quire.compaction.document_summaries import summarize_document
        from quire.context.vault import add_summaries

        documents = await asyncio.to_thread(vault.find_references, text)
        # Stored or extractive summaries, so that sending a question never waits for a model. The stored ones are found
        # by the digest of the document's text: a section or a changed file has none.
        paths = [each.reference.path for each in documents if each.reference.path is not None]
        stored = await self._engine.store.documents.list(vault.name, paths=paths) if paths else []
        return await add_summaries(
            documents,
            partial(summarize_document, model=None),
            cache=self._engine.runtime.document_summaries,
            stored={each.digest.hex(): each.summary for each in stored},
        )

    def resolve(
        self,
        message: Message,
        documents: "Sequence[ReferencedDocument]",
        *,
        remaining_tokens: int,
        uncontested_tokens: int,
    ) -> ResolvedReferences:
        """Decides injection for each document; `remaining_tokens` is what the request has left before the trigger.
        Documents that fit together into `uncontested_tokens` do not compete for it."""
        references: list[DocumentReference] = []
        decisions: list[Decision] = []
        texts: list[str] = []
        counts: list[int] = []
        for each in documents:
            text = label_text("document", each.text or "", name=each.reference.path, link=each.reference.link)
            count = self._engine.message_counter.token_counter.count(f"\n\n{text}")
            counts.append(count if each.text is not None else 0)
        competes = sum(counts) > uncontested_tokens
        for each, tokens in zip(documents, counts, strict=True):
            reference = each.reference
            share = self._engine.settings.document_share
            if reference.link.startswith("@"):
                share = max(share, IMPORT_SHARE)
            if share and not competes:
                share = 1.0
            injected = each.text is not None and tokens <= share * remaining_tokens
            if injected and each.text is not None and each.digest is not None:
                remaining_tokens -= tokens
                self._engine.runtime.blobs.put(each.digest, each.text.encode())
                reference = reference.model_copy(update={"blob": each.digest, "injected": True})
                texts.append(each.text)
            references.append(reference)
            reason = "not_found" if reference.path is None else "listed"
            if injected:
                reason = "imported" if reference.link.startswith("@") else "referenced"
            decisions.append(
                Decision(
                    slot="newest",
                    kind="document",
                    included=injected,
                    reason=reason,
                    tokens=tokens,
                    name=reference.path or reference.link,
                    blob=reference.blob if injected else None,
                )
            )
        return ResolvedReferences(PendingMessage(message, tuple(references)), tuple(decisions), tuple(texts))


def trim_documents(
    assembly: ViewAssembly, context: RequestContext, documents: Sequence[ContextBlock]
) -> RequestContext | None:
    """Trims the documents of the application (`prepare(documents=…)`) that the assembly left out; None if there are
    none.

    A trimmed document has its beginning and its end; its decision has the number of characters. The documents of a slot
    that do not fit share what is free in it, or what the rest of the request does not need, if that is more. The latter
    in steps: it shrinks with every message, and another excerpt would invalidate the prompt cache. `documents` are
    whole; the last blocks of the context are the same documents, whole or trimmed before.
    """
    first = len(context.blocks) - len(documents)
    others, current = context.blocks[:first], list(context.blocks[first:])
    included = {id(counted.block) for counted in assembly.selection.blocks}
    omitted = [position for position, block in enumerate(current) if id(block) not in included]
    if not omitted:
        return None
    # Documents come before the history, which can be compacted.
    optional = sum(counted.tokens for counted in assembly.selection.blocks if not counted.block.is_required)
    needed = assembly.counted_input.required_tokens + sum_tokens(assembly.selection.newest)
    free_tokens = assembly.budget.max_input_tokens - needed - optional
    spare_tokens = max(0, count_spare_tokens(assembly.counted_input, assembly.budget) - optional)
    spare_tokens -= spare_tokens % max(1, assembly.budget.max_input_tokens // SPARE_TOKEN_STEPS)
    trimmed: list[ContextBlock] = []
    for count, position in enumerate(omitted):
        slot = documents[position].slot
        used = sum(counted.tokens for counted in assembly.selection.blocks if counted.block.slot == slot)
        used += sum(_count_tokens(each, assembly.message_counter) for each in trimmed if each.slot == slot)
        available = min(free_tokens, max(assembly.budget.limit_for(slot) - used, spare_tokens))
        # Where equal shares would be too small, the first documents get the minimum.
        share = min(available, max(MIN_TRIMMED_TOKENS, available // (len(omitted) - count)))
        block = _trim(documents[position], share, assembly.message_counter)
        if block is not None:
            current[position] = block
            trimmed.append(block)
            tokens = _count_tokens(block, assembly.message_counter)
            free_tokens, spare_tokens = free_tokens - tokens, spare_tokens - tokens
    return replace(context, blocks=(*others, *current)) if trimmed else None


def _trim(document: ContextBlock, max_tokens: int, counter: MessageCounter) -> ContextBlock | None:
    if max_tokens < MIN_TRIMMED_TOKENS:
        return None

    def shorten(max_chars: int) -> ContextBlock:
        text = excerpt_message(Message.user(document.text), max_chars, seq=None).text
        return replace(document, text=text, excerpt_chars=max_chars)

    limit = find_largest_limit(
        lambda max_chars: _count_tokens(shorten(max_chars), counter),
        max_chars=min(len(document.text), MAX_CHARS_PER_TOKEN * max_tokens),
        max_tokens=max_tokens,
    )
    return shorten(limit) if limit else None


def _count_tokens(block: ContextBlock, counter: MessageCounter) -> int:
    return counter.count(Message.user(build_block_text(block.kind, block.text, name=block.name)))
