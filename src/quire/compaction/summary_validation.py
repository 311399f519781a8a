"""Validation of a summarizer's answer: accepts a summary, or raises `SummaryFailed` with the reason."""

import re
import zlib
from collections import Counter as Tally
from collections.abc import Sequence

from quire.compaction.citations import CITATION
from quire.compaction.summary_prompt import TranscriptMessage
from quire.errors import SummaryFailed
from quire.llm import Reply
from quire.model.finish_reasons import is_truncated, normalize_finish_reason
from quire.wire.tokens import TokenCounter

_SENTENCE_END = re.compile(r"[.!?…。！？)\]}>\"'`*|:;]\Z")
_THINKING_BLOCK = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_CODE_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*)\n```\s*\Z", re.DOTALL)
_LABEL_LINE = re.compile(r"^</?quire:[a-z]+ [^\n]*>$", re.MULTILINE)
_REFUSAL = re.compile(
    r"(?:unfortunately,? |sorry,? (?:but )?)?(?:(?:i['’]?m|i am|we are) (?:very |so |really )?(?:sorry|unable|not able)"
    r"|i (?:can['’]?t|cannot|can not|won['’]?t|must decline|apologi[sz]e))|sorry\b|as an ai\b|(?:my )?apologies\b",
    re.IGNORECASE,
)
_MAX_REFUSAL_CHARS = 400
_MESSAGE_HEADER = re.compile(r"^\[#[0-9]+\] (?:system|user|assistant|tool)[^\n]{0,40}:$", re.MULTILINE)
_MIN_ECHO_CHARS, _MAX_ECHO_SHARE = 400, 0.8


def validate_summary(
    reply: Reply, *, max_tokens: int, transcript: Sequence[TranscriptMessage], counter: TokenCounter
) -> str:
    """Returns the summary in a reply; raises if it exceeds `max_tokens` or is no summary of the transcript."""
    text = clean_reply(reply)
    if (tokens := counter.count(text)) > max_tokens:
        raise SummaryFailed("too_long", f"The answer has {tokens:,} tokens, and the limit is {max_tokens:,}.")
    if _is_echo(text, transcript):
        raise SummaryFailed("malformed", "The answer repeats the messages instead of summarizing them.")
    return text


def clean_reply(reply: Reply) -> str:
    """Strips thinking, fences and labels; raises if the answer is a refusal, empty, truncated or noise."""
    text = _THINKING_BLOCK.sub("", reply.message.text)
    fenced = _CODE_FENCE.match(text)
    text = _LABEL_LINE.sub("", fenced[1] if fenced else text).strip()
    if normalize_finish_reason(reply.finish_reason) == "content_filter" or _is_refusal(text):
        raise SummaryFailed("refused", f"The model declined: {text[:200] or reply.finish_reason}")
    if is_truncated(reply.finish_reason):
        raise SummaryFailed("truncated", "The answer was truncated at the token limit.")
    if not text:
        raise SummaryFailed("empty", "The answer was empty.")
    if not reply.finish_reason and not _SENTENCE_END.search(text):
        raise SummaryFailed(
            "truncated", "The answer ends in the middle of a sentence, and the provider gave no finish reason."
        )
    if _is_noise(text):
        raise SummaryFailed("malformed", "The answer has no letters, or repeats itself.")
    return text


def _is_refusal(text: str) -> bool:
    if len(text) > _MAX_REFUSAL_CHARS or CITATION.search(text) or "## " in text:
        return False
    return _REFUSAL.match(text) is not None


def _is_noise(text: str) -> bool:
    if not any(map(str.isalpha, text)):
        return True
    words = text.split()
    if len(words) >= 20 and Tally(words).most_common(1)[0][1] > len(words) / 2:
        return True
    # Prose compresses to about half, lists of similar facts to a fifth; only repetition to less than a tenth.
    data = text.encode()
    return len(data) >= 400 and len(zlib.compress(data)) < len(data) / 10


def _is_echo(text: str, transcript: Sequence[TranscriptMessage]) -> bool:
    """Whether the answer repeats the messages: under their own headers, or most of them verbatim."""
    if len(_MESSAGE_HEADER.findall(text)) >= min(3, len(transcript) + 1):
        return True
    answer = " ".join(text.split())
    # A part of the summary so far may be repeated.
    messages = [" ".join(each.text.split()) for each in transcript if each.seq]
    total = sum(map(len, messages))
    echoed = sum(len(message) for message in messages if message in answer)
    return total >= _MIN_ECHO_CHARS and echoed > total * _MAX_ECHO_SHARE
