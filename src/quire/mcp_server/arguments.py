"""Arguments of the tools: names, bounds and descriptions for the model, and their validation."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from quire.context.builtin_tool_schemas import ToolArguments
from quire.errors import InvalidRequest

MAX_QUERY_CHARS = 1_000
MAX_ID_CHARS = 200
MAX_NAME_CHARS = 500
"""Maximum length of a project or source; as in the log."""
MAX_TIME_CHARS = 40
MAX_NUMBER = 2**53 - 1
"""Largest message number: JSON clients have no larger integers."""
MAX_BRANCH_NUMBER = 2**31 - 1
MAX_SEARCH_HITS, MAX_LISTED_CONVERSATIONS, MAX_MEMORY_HITS = 20, 50, 20
MIN_READ_TOKENS, DEFAULT_READ_TOKENS, MAX_READ_TOKENS = 400, 4_000, 8_000
"""Bounds of one answer with messages: Claude Code warns at 10,000 tokens, as counted by another tokenizer."""
MAX_FACT_CHARS = 20_000
"""Maximum length of a text to remember that is validated; the engine then checks the limit of a memory."""
MAX_EDITED_MESSAGES = 100
"""Maximum messages that one call drops or restores."""
MAX_REASON_CHARS = 1_000
MAX_REPORTED_FAULTS = 5
MAX_FAULT_CHARS = 200


def _check_text(text: str) -> str:
    """Refuses what no stored text has: characters that cannot be encoded, and control characters."""
    if any(ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ValueError("has control characters; remove them")
    return text


def _clean_query(text: object) -> object:
    """Replaces line breaks and other control characters, which mean nothing to a search, by blanks."""
    if not isinstance(text, str):
        return text
    return "".join(" " if ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF else char for char in text).strip()


def _parse_time(text: str) -> str:
    to_micros(text)
    return text


def to_micros(text: str, *, is_end: bool = False) -> int:
    """Microseconds since 1970 of an ISO 8601 date or time; with `is_end`, a date means the end of its day."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("is no ISO 8601 date or time, such as 2026-03-31 or 2026-03-31T12:00:00Z") from None
    if is_end and len(text.strip()) <= len("2026-03-31") and time < datetime.max - timedelta(days=1):
        time += timedelta(days=1)
    return int(time.replace(tzinfo=time.tzinfo or UTC).timestamp() * 1_000_000)


Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS), BeforeValidator(_clean_query)]
ConversationId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_check_text)]
OriginName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(_check_text)]
Time = Annotated[str, Field(max_length=MAX_TIME_CHARS), AfterValidator(_parse_time)]
Fact = Annotated[str, Field(min_length=1, max_length=MAX_FACT_CHARS), AfterValidator(_check_text)]
MessageNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
BranchNumber = Annotated[int, Field(ge=0, le=MAX_BRANCH_NUMBER, description="Branch, as a hit names it.")]


class HistoryToolArguments(ToolArguments):
    """Arguments of a tool of the MCP server. Unknown ones are refused, so that a misspelt filter is not ignored."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class HistorySearchCall(HistoryToolArguments):
    """Search every stored conversation with any agent or chat, also what was compacted away or happened in another
    program. Returns numbered excerpts, best first; read around one with history_read."""

    tool_name = "history_search"
    query: Query = Field(description="What to find, in words that were likely used.")
    conversation: ConversationId | None = Field(default=None, description="Only this conversation.")
    project: OriginName | None = Field(default=None, description="Only this project, as history_list names it.")
    source: OriginName | None = Field(default=None, description="Only this program, such as claude-code or codex.")
    since: Time | None = Field(default=None, description="ISO 8601 date or time, UTC.")
    until: Time | None = Field(default=None, description="ISO 8601 date or time, UTC.")
    role: Literal["user", "assistant", "tool"] | None = None
    limit: int = Field(default=8, ge=1, le=MAX_SEARCH_HITS)


class HistoryReadCall(HistoryToolArguments):
    """Read messages of a conversation by number. Long tool outputs are excerpts; with `start` one message is read in
    full, from that character on. `next` in the answer has the arguments that continue."""

    tool_name = "history_read"
    conversation: ConversationId
    first: MessageNumber | None = Field(default=None, alias="from", description="First number; else the newest ones.")
    last: MessageNumber | None = Field(default=None, alias="to", description="Last number.")
    around: MessageNumber | None = Field(default=None, description="Number in the middle, instead of from and to.")
    start: int | None = Field(
        default=None, ge=0, le=MAX_NUMBER, description="Read only message `from`, from this character on."
    )
    max_tokens: int = Field(default=DEFAULT_READ_TOKENS, ge=MIN_READ_TOKENS, le=MAX_READ_TOKENS)
    branch: BranchNumber = 0


class HistoryListCall(HistoryToolArguments):
    """List stored conversations, the most recently used first: title, first question, program, project, size."""

    tool_name = "history_list"
    project: OriginName | None = None
    source: OriginName | None = Field(default=None, description="Program, such as claude-code or codex.")
    since: Time | None = Field(default=None, description="ISO 8601 date or time, UTC.")
    limit: int = Field(default=20, ge=1, le=MAX_LISTED_CONVERSATIONS)


class ContextExplainCall(HistoryToolArguments):
    """Explain a recorded model request: what was in its context, what was left out and why, tokens by slot, and why
    the prompt cache broke there."""

    tool_name = "context_explain"
    conversation: ConversationId
    reply: MessageNumber | None = Field(default=None, description="Number of the reply; else the newest.")
    branch: BranchNumber = 0


class MemorySearchCall(HistoryToolArguments):
    """Search the memories: lasting facts and preferences, each with the message that it cites."""

    tool_name = "memory_search"
    query: Query
    limit: int = Field(default=8, ge=1, le=MAX_MEMORY_HITS)


class MemoryWriteCall(HistoryToolArguments):
    """Store a lasting fact or preference as a memory. It must cite the stored message that states it."""

    tool_name = "memory_write"
    text: Fact = Field(description="One fact in a sentence that can be understood alone.")
    conversation: ConversationId
    number: MessageNumber = Field(description="Number of the message that states it.")
    branch: BranchNumber = 0


class ContextUsageCall(HistoryToolArguments):
    """Show how full the context of a conversation is, which messages in it are the largest, and which edits wait. Your
    own conversation is the newest of your project in history_list."""

    tool_name = "context_usage"
    conversation: ConversationId
    branch: BranchNumber = 0


MessageNumbers = Annotated[list[MessageNumber], Field(min_length=1, max_length=MAX_EDITED_MESSAGES)]
Now = Annotated[
    bool,
    Field(description="At the user's next message, even if the prompt cache must be written again."),
]


class ContextDropCall(HistoryToolArguments):
    """Drop tool results or messages from the context of later requests: a stub stays, with the number to read it by.
    Waits until the prompt cache has expired."""

    tool_name = "context_drop"
    conversation: ConversationId
    numbers: MessageNumbers
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS), AfterValidator(_check_text)] | None = None
    now: Now = False
    branch: BranchNumber = 0


class ContextRestoreCall(HistoryToolArguments):
    """Bring messages back into the context: dropped ones as they were, ones that a compaction removed as quotations."""

    tool_name = "context_restore"
    conversation: ConversationId
    numbers: MessageNumbers
    now: Now = False
    branch: BranchNumber = 0


READING_TOOLS: tuple[type[HistoryToolArguments], ...] = (
    HistorySearchCall,
    HistoryReadCall,
    HistoryListCall,
    ContextExplainCall,
    MemorySearchCall,
)
WRITING_TOOLS: tuple[type[HistoryToolArguments], ...] = (
    MemoryWriteCall,
    ContextUsageCall,
    ContextDropCall,
    ContextRestoreCall,
)
"""Tools for callers that may write. `context_usage` says what the other two would need to know."""
TOOLS = {each.tool_name: each for each in (*READING_TOOLS, *WRITING_TOOLS)}
HistoryToolCall = (
    HistorySearchCall
    | HistoryReadCall
    | HistoryListCall
    | ContextExplainCall
    | MemorySearchCall
    | MemoryWriteCall
    | ContextUsageCall
    | ContextDropCall
    | ContextRestoreCall
)


def parse_arguments(name: str, arguments: Mapping[str, Any] | None) -> HistoryToolCall:
    """Parses a call; the errors say what to correct, so that the model can retry."""
    if name not in TOOLS:
        raise InvalidRequest(f"There is no tool {name[:MAX_ID_CHARS]!r}; the tools are {', '.join(TOOLS)}.")
    try:
        return TOOLS[name].model_validate(arguments or {})  # type: ignore[return-value]
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_REPORTED_FAULTS]
        texts = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}"[:MAX_FAULT_CHARS] for each in faults]
        raise InvalidRequest(f"The arguments of {name} are invalid: {'; '.join(texts)}.") from None
