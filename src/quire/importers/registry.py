"""All sources that can be imported, by name. A new source is one line here."""

from quire.importers.base import Source
from quire.importers.chatgpt import ChatGptSource
from quire.importers.claude import ClaudeSource
from quire.importers.claude_code import ClaudeCodeSource
from quire.importers.codex import CodexSource
from quire.importers.cursor import CursorSource
from quire.importers.librechat import LibreChatSource
from quire.importers.llm_logs import LlmSource
from quire.importers.open_webui import OpenWebUiSource
from quire.importers.openai_agents import OpenAiAgentsSource
from quire.importers.openai_jsonl import OpenAiJsonlSource

_SOURCES: tuple[Source, ...] = (
    ClaudeCodeSource(),
    CodexSource(),
    CursorSource(),
    ChatGptSource(),
    ClaudeSource(),
    LibreChatSource(),
    OpenWebUiSource(),
    LlmSource(),
    OpenAiJsonlSource(),
    OpenAiAgentsSource(),
)
SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}
