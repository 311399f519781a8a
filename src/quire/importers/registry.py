"""All sources that can be imported, by name."""

from quire.importers import chatgpt, claude, librechat, open_webui
from quire.importers.base import Source
from quire.importers.claude_code import ClaudeCodeSource
from quire.importers.codex import CodexSource
from quire.importers.cursor import CursorSource
from quire.importers.llm_logs import LlmSource
from quire.importers.openai_agents import OpenAiAgentsSource
from quire.importers.openai_jsonl import OpenAiJsonlSource

_SOURCES: tuple[Source, ...] = (
    ClaudeCodeSource(),
    CodexSource(),
    CursorSource(),
    chatgpt.SOURCE,
    claude.SOURCE,
    librechat.SOURCE,
    open_webui.SOURCE,
    LlmSource(),
    OpenAiJsonlSource(),
    OpenAiAgentsSource(),
)
SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}
