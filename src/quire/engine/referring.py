"""What a message refers to: found in the vault, and decided for each document whether its text comes along.

A small one is injected, a large one listed with its summary for the model to read: against the tokens that are left.
What is decided stays on the message.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quire.engine.core import Core
from quire.engine.request import Asked
from quire.model import Message
from quire.model.manifest import Decision
from quire.model.notes import DocumentReference
from quire.view.labels import labelled

if TYPE_CHECKING:
    from quire.context.vault import Referred

KEPT_SUMMARIES = 10_000


class Referring(NamedTuple):
    asked: Asked
    decided: tuple[Decision, ...] = ()
    texts: tuple[str, ...] = ()
    """The documents that are injected."""


class Referrer:
    """Looks up what messages name, for the conversations of one engine."""

    def __init__(self, engine: Core) -> None:
        self._engine = engine
        self._summaries: dict[str, str] = {}

    async def named_in(self, message: Message) -> "list[Referred]":
        """The documents that a user's message names, with their summaries."""
        vault, text = self._engine.vault, message.text
        if vault is None or message.role != "user" or ("[[" not in text and "@" not in text):
            return []
        from quire.context.vault import summarized

        found = await asyncio.to_thread(vault.references, text)
        if len(self._summaries) > KEPT_SUMMARIES:
            self._summaries.clear()
        # Without a model: nobody waits for a summary before their question is sent.
        return await summarized(found, _leading, kept=self._summaries)

    def decide(self, message: Message, found: "Sequence[Referred]", *, left: int) -> Referring:
        """`left` is how many tokens the request has left before the trigger."""
        references: list[DocumentReference] = []
        decided: list[Decision] = []
        texts: list[str] = []
        for each in found:
            reference = each.reference
            share = self._engine.settings.import_share if reference.link.startswith("@") else None
            share = self._engine.settings.document_share if share is None else share
            tokens = self._tokens(each)
            injected = each.text is not None and tokens <= share * left
            if injected and each.text is not None and each.digest is not None:
                left -= tokens
                self._engine.blobs.keep(each.digest, each.text.encode())
                reference = reference.model_copy(update={"blob": each.digest, "injected": True})
                texts.append(each.text)
            references.append(reference)
            decided.append(_decision(reference, tokens))
        return Referring(Asked(message, tuple(references)), tuple(decided), tuple(texts))

    def _tokens(self, referred: "Referred") -> int:
        if referred.text is None:
            return 0
        reference = referred.reference
        shown = labelled("document", referred.text, name=reference.path, link=reference.link)
        return self._engine.meter.counter.count(f"\n\n{shown}")


async def _leading(text: str) -> str:
    from quire.compaction.documents import document_summary

    return await document_summary(text, model=None)


def _decision(reference: DocumentReference, tokens: int) -> Decision:
    name = reference.path or reference.link
    if reference.injected:
        reason = "imported" if reference.link.startswith("@") else "referenced"
        return Decision(
            slot="newest",
            what="document",
            included=True,
            reason=reason,
            tokens=tokens,
            name=name,
            blob=reference.blob,
        )
    reason = "not_found" if reference.path is None else "listed"
    return Decision(slot="newest", what="document", included=False, reason=reason, tokens=tokens, name=name)
