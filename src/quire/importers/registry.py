"""All sources that can be imported, by name. A new source is one line here."""

from quire.importers.aider import AiderSource
from quire.importers.amp import AmpSource
from quire.importers.base import Source
from quire.importers.chatgpt import ChatGptSource
from quire.importers.claude import ClaudeSource
from quire.importers.claude_code import ClaudeCodeSource
from quire.importers.cline import ClineSource
from quire.importers.codex import CodexSource
from quire.importers.continue_dev import ContinueSource
from quire.importers.copilot_chat import CopilotChatSource
from quire.importers.copilot_cli import CopilotCliSource
from quire.importers.cursor import CursorSource
from quire.importers.droid import DroidSource
from quire.importers.gemini_cli import GeminiCliSource
from quire.importers.goose import GooseSource
from quire.importers.kilo import KiloSource
from quire.importers.librechat import LibreChatSource
from quire.importers.llm_logs import LlmSource
from quire.importers.lm_studio import LmStudioSource
from quire.importers.open_webui import OpenWebUiSource
from quire.importers.openai_agents import OpenAiAgentsSource
from quire.importers.openai_jsonl import OpenAiJsonlSource
from quire.importers.opencode import OpenCodeSource
from quire.importers.pi import PiSource
from quire.importers.qwen_code import QwenCodeSource
from quire.importers.roo_code import RooCodeSource
from quire.importers.zed_editor import ZedSource

_SOURCES: tuple[Source, ...] = (
    ClaudeCodeSource(),
    CodexSource(),
    OpenCodeSource(),
    GeminiCliSource(),
    CursorSource(),
    ClineSource(),
    RooCodeSource(),
    ContinueSource(),
    CopilotCliSource(),
    CopilotChatSource(),
    GooseSource(),
    AmpSource(),
    QwenCodeSource(),
    KiloSource(),
    DroidSource(),
    PiSource(),
    AiderSource(),
    ZedSource(),
    LmStudioSource(),
    ChatGptSource(),
    ClaudeSource(),
    LibreChatSource(),
    OpenWebUiSource(),
    LlmSource(),
    OpenAiJsonlSource(),
    OpenAiAgentsSource(),
)
SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}
