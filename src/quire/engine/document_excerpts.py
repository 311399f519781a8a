"""Trims the documents of the application (`prepare(documents=…)`) that do not fit, instead of leaving them out.

A trimmed document has its beginning and its end; its decision has the number of characters. The documents of a slot
that do not fit share what is free in it.
"""

from collections.abc import Sequence
from dataclasses import replace

from quire.engine.context_gatherer import RequestContext
from quire.model import Message
from quire.view.assembly import ViewAssembly
from quire.view.batches import sum_tokens
from quire.view.counted_input import build_block_text
from quire.view.excerpts import excerpt_message, find_largest_limit
from quire.view.inputs import ContextBlock
from quire.view.rendered import MessageCounter

MIN_TRIMMED_TOKENS = 64
"""A document with less room than this is left out: an excerpt of it would say nothing."""
MAX_CHARS_PER_TOKEN = 16
"""Bounds the search for the longest excerpt. Texts with longer tokens on average are rows of blanks or signs."""


def trim_documents(
    assembly: ViewAssembly, context: RequestContext, documents: Sequence[ContextBlock]
) -> RequestContext | None:
    """The context with those documents trimmed that the assembly left out; None if there is nothing to trim.

    `documents` are whole; the last blocks of the context are the same documents, whole or trimmed before.
    """
    first = len(context.blocks) - len(documents)
    others, current = context.blocks[:first], list(context.blocks[first:])
    included = {id(counted.block) for counted in assembly.selection.blocks}
    omitted = [position for position, block in enumerate(current) if id(block) not in included]
    free_tokens = _count_free_tokens(assembly) if omitted else 0
    trimmed: list[ContextBlock] = []
    for count, position in enumerate(omitted):
        available = min(free_tokens, _count_free_in_slot(assembly, documents[position], trimmed))
        # Where equal shares would be too small, the first documents get the minimum.
        share = min(available, max(MIN_TRIMMED_TOKENS, available // (len(omitted) - count)))
        block = _trim(documents[position], share, assembly.message_counter)
        if block is not None:
            current[position] = block
            trimmed.append(block)
            free_tokens -= _count_tokens(block, assembly.message_counter)
    return replace(context, blocks=(*others, *current)) if trimmed else None


def _count_free_tokens(assembly: ViewAssembly) -> int:
    """Tokens that remain for documents. They come before the history, which can be compacted."""
    used = sum(counted.tokens for counted in assembly.selection.blocks if not counted.block.is_required)
    newest = sum_tokens(assembly.selection.newest)
    return assembly.budget.max_input_tokens - assembly.counted_input.required_tokens - newest - used


def _count_free_in_slot(assembly: ViewAssembly, document: ContextBlock, trimmed: Sequence[ContextBlock]) -> int:
    used = sum(counted.tokens for counted in assembly.selection.blocks if counted.block.slot == document.slot)
    added = sum(_count_tokens(each, assembly.message_counter) for each in trimmed if each.slot == document.slot)
    return assembly.budget.limit_for(document.slot) - used - added


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
