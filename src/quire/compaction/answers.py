"""Answers of a summarizer: what is taken for a summary, and what is refused, with the reason."""

import re
import zlib
from collections import Counter as Tally
from collections.abc import Sequence

from quire.compaction.citations import CITATION
from quire.compaction.template import Said
from quire.errors import SummaryFailed
from quire.llm import Reply
from quire.view.tokens import Counter

_CUT_OFF = frozenset(["length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"])
_DECLINED = frozenset(["content_filter", "refusal", "safety", "recitation", "blocklist", "prohibited_content", "spii"])
_ENDS = re.compile(r"[.!?…。！？)\]}>\"'`*|:;]\Z")
_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"\A\s*```[a-z]*\n(.*)\n```\s*\Z", re.DOTALL)
_LABEL = re.compile(r"^</?quire:[a-z]+ [^\n]*>$", re.MULTILINE)
_SORRY = re.compile(
    r"(?:unfortunately,? |sorry,? (?:but )?)?(?:(?:i['’]?m|i am|we are) (?:very |so |really )?(?:sorry|unable|not able)"
    r"|i (?:can['’]?t|cannot|can not|won['’]?t|must decline|apologi[sz]e))|sorry\b|as an ai\b|(?:my )?apologies\b",
    re.IGNORECASE,
)
_APOLOGY_CHARACTERS = 400
_HEADER = re.compile(r"^\[#[0-9]+\] (?:system|user|assistant|tool)[^\n]{0,40}:$", re.MULTILINE)
_ECHOED_CHARACTERS, _ECHOED_SHARE = 400, 0.8


def accepted(reply: Reply, *, allowed: int, block: Sequence[Said], counter: Counter) -> str:
    """The summary of these messages in a reply, at most `allowed` tokens; raises if it is none."""
    text = bare_answer(reply)
    if (tokens := counter.count(text)) > allowed:
        raise SummaryFailed("too_long", f"The answer has {tokens:,} tokens, and {allowed:,} are allowed.")
    if _echoes(text, block):
        raise SummaryFailed("garbage", "The answer repeats the messages instead of summarizing them.")
    return text


def bare_answer(reply: Reply) -> str:
    """The text of a reply without what models put around it; raises if it refuses, is empty, cut off or no language."""
    finish = (reply.finish or "").lower()
    text = _THOUGHTS.sub("", reply.message.text)
    fenced = _FENCE.match(text)
    text = _LABEL.sub("", fenced[1] if fenced else text).strip()
    if finish in _DECLINED or _apologizes(text):
        raise SummaryFailed("refused", f"The model declined: {text[:200] or finish}")
    if finish in _CUT_OFF:
        raise SummaryFailed("truncated", "The answer was cut off.")
    if not text:
        raise SummaryFailed("empty", "The answer was empty.")
    if not finish and not _ENDS.search(text):
        raise SummaryFailed("truncated", "The answer breaks off, and the provider gave no reason why it ended.")
    if _is_noise(text):
        raise SummaryFailed("garbage", "The answer is no text, or one thing over and over.")
    return text


def _apologizes(text: str) -> bool:
    if len(text) > _APOLOGY_CHARACTERS or CITATION.search(text) or "## " in text:
        return False
    return _SORRY.match(text) is not None


def _is_noise(text: str) -> bool:
    if not any(map(str.isalpha, text)):
        return True
    words = text.split()
    if len(words) >= 20 and Tally(words).most_common(1)[0][1] > len(words) / 2:
        return True
    # Prose shrinks to about half, lists of like facts to a fifth; only repetition goes below a tenth.
    data = text.encode()
    return len(data) >= 400 and len(zlib.compress(data)) < len(data) / 10


def _echoes(text: str, block: Sequence[Said]) -> bool:
    """Whether the answer is the messages over again: under their own headers, or most of them as they were."""
    if len(_HEADER.findall(text)) >= min(3, len(block) + 1):
        return True
    answer = " ".join(text.split())
    messages = [" ".join(each.text.split()) for each in block]
    total = sum(map(len, messages))
    echoed = sum(len(message) for message in messages if message in answer)
    return total >= _ECHOED_CHARACTERS and echoed > total * _ECHOED_SHARE
