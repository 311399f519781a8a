"""What one caller of the MCP server may read and do."""

from dataclasses import dataclass
from datetime import UTC, datetime

from quire.engine.engine import Engine
from quire.log.types import MAIN_BRANCH, ConversationRecord
from quire.mcp_server.answers import FIT_MARGIN
from quire.model import Message
from quire.model.secrets import mask_message, mask_secrets
from quire.wire.tokens import TokenCounter, estimating_counter

MAX_LABEL_CHARS, MAX_LABEL_TOKENS = 160, 60
"""Length of a title, a project or a name in an answer; the rest is cut off."""


@dataclass(frozen=True, kw_only=True)
class HistoryAccess:
    """The engine of the caller's tenant, and the caller's rights."""

    engine: Engine
    may_write: bool = False
    """Whether the caller may store memories and change what an agent is sent."""
    calls_model: bool = False
    """Whether a hand-over may call the summarizer, which costs money."""

    @property
    def counter(self) -> TokenCounter:
        """The same for every caller: the model that reads an answer is not known."""
        return estimating_counter()

    def mask(self, text: str) -> str:
        return mask_secrets(text)

    def mask_message(self, message: Message) -> Message:
        return mask_message(message)

    def to_label(self, text: str | None) -> str | None:
        """A title or name on one line, or None if there is none. Masked whole, then cut."""
        line = " ".join(self.mask(text or "").split())[:MAX_LABEL_CHARS]
        return self.cut_text(line, MAX_LABEL_TOKENS) or None

    def cut_text(self, text: str, max_tokens: int) -> str:
        """The beginning of a short text with at most `max_tokens`, approximately the longest one."""
        while (tokens := self.counter.count(text)) > max_tokens:
            text = text[: int(len(text) * FIT_MARGIN * max_tokens / tokens)]
        return text

    async def load_titles(self, *records: ConversationRecord) -> list[ConversationRecord]:
        return await self.engine.store.fill_titles(*records)


def format_time(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros / 1_000_000, tz=UTC):%Y-%m-%d %H:%M}Z"


def branch_or_none(branch: int) -> int | None:
    """The number of a branch for an answer; None for the main branch, which an answer does not name."""
    return branch if branch != MAIN_BRANCH else None
