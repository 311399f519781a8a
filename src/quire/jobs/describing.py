"""Better summaries for documents: a sentence by the model for those whose first paragraph does not say enough.

An index is made without a model, so that nobody waits for one; such a document then has its leading sentences for a
summary. Those are what is looked for here, so that a document is described once, and again when it has changed.
"""

from quire.compaction.documents import LIMIT_CHARACTERS, document_summary, first_paragraph, leading_sentences
from quire.context.vault import Vault
from quire.engine import Engine
from quire.llm import Model
from quire.log.found import Document, IndexedDocument, Passage, vault_scope

FAILURES = 3
"""After so many that the model had no sentence for, one after the other, the rest waits for another time."""


async def describe_documents(engine: Engine, vault: Vault, model: Model) -> int:
    """Describes those of a vault that lack it, and says how many it did."""
    described = failures = 0
    for document in await engine.store.documents(vault.name):
        passages = await engine.store.passages(vault_scope(vault.name), document.path)
        text = "\n\n".join(passage.text for passage in passages)
        if _says_enough(document, text):
            continue
        summary = await document_summary(text, model=model)
        if summary == document.summary:
            failures += 1
            if failures == FAILURES:
                break
            continue
        failures = 0
        described += await _keep(engine, vault, document._replace(summary=summary), passages)
    return described


def _says_enough(document: Document, text: str) -> bool:
    """It has its first paragraph for a summary, or somebody's sentence."""
    leading = leading_sentences(text, LIMIT_CHARACTERS)
    return document.summary != leading or leading == first_paragraph(text)


async def _keep(engine: Engine, vault: Vault, document: Document, passages: list[Passage]) -> bool:
    """Unless the document has changed since it was read; the vectors of its passages stay."""
    known = await engine.store.documents(vault.name, paths=[document.path])
    if [each.digest for each in known] != [document.digest]:
        return False
    same = tuple(passage._replace(embedder=None) for passage in passages)
    await engine.store.put_documents(vault.name, [IndexedDocument(document, same)])
    return True
