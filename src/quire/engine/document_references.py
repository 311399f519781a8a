"""Resolves the documents that a message names, and decides for each whether its text is injected.

A document that is small against the remaining tokens is injected into the message; a larger one is listed with its
summary, for the model to read with a tool. The decision is stored with the message.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.context import EngineContext
from quire.engine.request import PendingMessage
from quire.model import Message
from quire.model.entry_metadata import DocumentReference
from quire.model.manifest import Decision
from quire.wire.labels import label_text

if TYPE_CHECKING:
    from quire.context.vault import ReferencedDocument, Vault

IMPORT_SHARE = 0.5
"""Share of the remaining tokens up to which a file that a message imports with @path is included in full."""


class ResolvedReferences(NamedTuple):
    """A message with its document references, and the decisions about them."""

    pending: PendingMessage
    decisions: tuple[Decision, ...] = ()
    texts: tuple[str, ...] = ()
    """Texts of the injected documents."""


class ReferenceResolver:
    """Resolves document references for the conversations of one engine."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine

    async def find_references(self, message: Message) -> "list[ReferencedDocument]":
        """The documents that a user's message names, with their summaries."""
        vault, text = self._engine.vault, message.text
        if vault is None or message.role != "user" or ("[[" not in text and "@" not in text):
            return []
        from quire.context.vault import add_summaries

        documents = await asyncio.to_thread(vault.find_references, text)
        # Stored or extractive summaries, so that sending a question never waits for a model.
        return await add_summaries(
            documents,
            _extract_summary,
            cache=self._engine.runtime.document_summaries,
            stored=await self._load_summaries(vault, documents),
        )

    async def _load_summaries(self, vault: "Vault", documents: "Sequence[ReferencedDocument]") -> dict[str, str]:
        """Summaries in the index by the digest of the document's text: a section or a changed file has none."""
        paths = [each.reference.path for each in documents if each.reference.path is not None]
        stored = await self._engine.store.documents.list(vault.name, paths=paths) if paths else []
        return {each.digest.hex(): each.summary for each in stored}

    def resolve(
        self, message: Message, documents: "Sequence[ReferencedDocument]", *, remaining_tokens: int
    ) -> ResolvedReferences:
        """Decides injection for each document; `remaining_tokens` is what the request has left before the trigger."""
        references: list[DocumentReference] = []
        decisions: list[Decision] = []
        texts: list[str] = []
        for each in documents:
            reference = each.reference
            share = self._engine.settings.document_share
            if reference.link.startswith("@"):
                share = max(share, IMPORT_SHARE)
            tokens = self._count_tokens(each)
            injected = each.text is not None and tokens <= share * remaining_tokens
            if injected and each.text is not None and each.digest is not None:
                remaining_tokens -= tokens
                self._engine.blobs.put(each.digest, each.text.encode())
                reference = reference.model_copy(update={"blob": each.digest, "injected": True})
                texts.append(each.text)
            references.append(reference)
            decisions.append(_make_decision(reference, tokens))
        return ResolvedReferences(PendingMessage(message, tuple(references)), tuple(decisions), tuple(texts))

    def _count_tokens(self, document: "ReferencedDocument") -> int:
        if document.text is None:
            return 0
        reference = document.reference
        text = label_text("document", document.text, name=reference.path, link=reference.link)
        return self._engine.message_counter.token_counter.count(f"\n\n{text}")


async def _extract_summary(text: str) -> str:
    from quire.compaction.document_summaries import summarize_document

    return await summarize_document(text, model=None)


def _make_decision(reference: DocumentReference, tokens: int) -> Decision:
    name = reference.path or reference.link
    if reference.injected:
        reason = "imported" if reference.link.startswith("@") else "referenced"
        return Decision(
            slot="newest",
            kind="document",
            included=True,
            reason=reason,
            tokens=tokens,
            name=name,
            blob=reference.blob,
        )
    reason = "not_found" if reference.path is None else "listed"
    return Decision(slot="newest", kind="document", included=False, reason=reason, tokens=tokens, name=name)
