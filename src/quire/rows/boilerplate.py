"""Boilerplate of coding agents: what they add to messages of their own accord.

Reminders, the environment, project rules, lists of skills, tools and agents, attribution, and the prompts of their
compactions. The log has all of it, and a replay sends it again. Hand-overs, summaries, recall, search and titles are
about what people and models said, so they leave it out. This module alone recognizes it. The forms of different agents
and versions do not collide, so all of `BLOCKS` applies to any message.

Only a block at the start of a text, or at the end of a tool's result, is boilerplate, and only if it is closed: a
message about `<system-reminder>` stays whole. Words of the user or of a model inside a block stay too.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

CLAUDE_CODE, CODEX, OPENCODE, GEMINI_CLI = "claude-code", "codex", "opencode", "gemini"

CLAUDE_SUMMARY_PROMPT = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
CODEX_SUMMARY_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION."
GEMINI_SUMMARY_PROMPTS = (
    "Generate a new <state_snapshot>",
    "A previous <state_snapshot> exists",
    "Critically evaluate the <state_snapshot>",
)
SUMMARY_PROMPTS = (CLAUDE_SUMMARY_PROMPT, CODEX_SUMMARY_PROMPT, *GEMINI_SUMMARY_PROMPTS)
"""Starts of the texts with which agents ask for a summary of their list."""
CLAUDE_SUMMARY_OPENING = "This session is being continued from a previous conversation"
CODEX_SUMMARY_OPENING = "Another language model started to solve this problem and produced a summary"
GEMINI_SUMMARY_OPENINGS = ("<state_snapshot>", "<scratchpad>")
SUMMARY_OPENINGS = (CLAUDE_SUMMARY_OPENING, CODEX_SUMMARY_OPENING, *GEMINI_SUMMARY_OPENINGS)
"""Starts of the texts in which agents put that summary. web/src/lib/clientCompactions.ts has them, too."""
GEMINI_SUMMARY_ANSWER = "Got it. Thanks for the additional context!"
"""The reply after a summary in the list of Gemini CLI, which no model wrote."""
OPENCODE_SUMMARY_QUESTION = "What did we do so far?"
"""The message before opencode's summary, which is a reply in its list."""


SESSION_CONTEXT_OPENING = "<session_context>\nThis is the Gemini CLI."
"""Start of the part in which Gemini CLI describes the day and the folder, at each start of the program."""


class BoilerplateBlock(NamedTuple):
    """A form of boilerplate: a text from `start` to `end`, both included."""

    role: str
    start: str
    end: str = ""
    """Empty for the end of the text."""
    words: tuple[tuple[str, str], ...] = ()
    """Start and end of what the user or a model said inside of the block. An empty end is the end of the block."""


def _list_tags(role: str, *names: str) -> Iterable[BoilerplateBlock]:
    return (BoilerplateBlock(role, f"<{name}>", f"</{name}>") for name in names)


_CODEX_TAGS = (
    "apps_instructions", "codex_internal_context", "collaboration_mode", "environment_context",
    "environments_instructions", "managed_developer_instructions", "model_instructions", "model_switch",
    "multi_agent_mode", "permissions instructions", "persistent_mode", "personality_spec", "plugins_instructions",
    "recommended_plugins", "skills_instructions", "startup_context", "turn_aborted", "user_instructions",
)  # fmt: skip

BLOCKS: dict[tuple[str, str], tuple[BoilerplateBlock, ...]] = {
    (CLAUDE_CODE, "2.1.325"): (
        BoilerplateBlock(
            "user",
            "<system-reminder>",
            "</system-reminder>",
            (
                ("\nResult of calling the Read tool:\n", "</system-reminder>"),
                ("<result>", "</result>"),
                ("The user sent a new message while you were working:\n", "\n\nIMPORTANT:"),
            ),
        ),
        *_list_tags("user", "local-command-caveat", "local-command-stdout", "local-command-stderr"),
        BoilerplateBlock("user", "Base directory for this skill: ", words=(("\n\nARGUMENTS: ", ""),)),
        BoilerplateBlock(
            "user",
            CLAUDE_SUMMARY_PROMPT,
            words=(("\nAdditional Instructions:\n", "\n\nREMINDER: Do NOT call any tools."),),
        ),
        BoilerplateBlock(
            "user",
            CLAUDE_SUMMARY_OPENING,
            words=(("\nSummary:\n", "\n\nIf you need specific details from before compaction"),),
        ),
        *_list_tags("tool", "system-reminder"),
        BoilerplateBlock("tool", "Async agent launched successfully. (This tool result is internal metadata"),
        *_list_tags("system", "system-reminder"),
        BoilerplateBlock("system", "# Environment\nYou have been invoked in the following environment:"),
        BoilerplateBlock("system", "The following deferred tools are now available via ToolSearch."),
        BoilerplateBlock("system", "Available agent types for the Agent tool:"),
    ),
    (CODEX, "0.166.0"): (
        *_list_tags("user", *_CODEX_TAGS),
        *_list_tags("system", *_CODEX_TAGS),
        BoilerplateBlock("user", "# AGENTS.md instructions ", "</INSTRUCTIONS>"),
        BoilerplateBlock(
            "user", "<subagent_notification>", "</subagent_notification>", (('"status":{"completed":"', '"}}'),)
        ),
        BoilerplateBlock("user", "Message Type: ", words=(("\nPayload:\n", ""),)),
        BoilerplateBlock("user", CODEX_SUMMARY_PROMPT),
        BoilerplateBlock(
            "user",
            CODEX_SUMMARY_OPENING,
            "use the information in this summary to assist with your own analysis:",
        ),
        BoilerplateBlock("system", "You are a coding agent running in the Codex CLI,"),
    ),
    (OPENCODE, "1.18.33"): (
        *_list_tags("user", "system-reminder"),
        BoilerplateBlock("user", "Generate a title for this conversation:\n"),
        BoilerplateBlock("user", "Continue if you have next steps, or stop and ask for clarification"),
        BoilerplateBlock("system", "You are OpenCode, "),
    ),
    (GEMINI_CLI, "0.61.0"): (
        *_list_tags("user", "session_context", "hook_context"),
        *(BoilerplateBlock("user", prompt) for prompt in GEMINI_SUMMARY_PROMPTS),
    ),
}
"""Forms by agent and the version in which they were seen."""

AGENTS = frozenset(agent for agent, _ in BLOCKS)
"""Clients whose system messages are all their own."""

_COMMAND_TAGS = ("command-name", "command-message", "command-args")
_BLOCKS_BY_ROLE = {
    role: tuple(block for blocks in BLOCKS.values() for block in blocks if block.role == role)
    for role in ("user", "tool", "system")
}
_STARTS_BY_ROLE = {role: tuple(block.start for block in blocks) for role, blocks in _BLOCKS_BY_ROLE.items()}
_STATE_ITEMS = frozenset({"additional_tools", "compaction_trigger", "configuration_update"})
"""Items of the Responses API that a client adds and that have no words."""
_REMINDER_START, _REMINDER_END = "<system-reminder>", "</system-reminder>"


def is_client_state(provider_fields: Mapping[str, Any] | None) -> bool:
    """Whether a text with these fields is the placeholder of an item with tools or settings of a client."""
    item = (provider_fields or {}).get("responses")
    return isinstance(item, dict) and cast("dict[str, Any]", item).get("type") in _STATE_ITEMS


def strip_text(text: str, role: str, words: list[str]) -> str:
    """The text of a message of this role, or of a tool's result, without its blocks.

    Adds what the user or a model said in them to `words`. A text without blocks is returned as it is.
    """
    position = start = _skip_space(text, 0)
    while (end := _find_block_end(text, position, role, words)) is not None:
        position = _skip_space(text, end)
    last = trimmed = len(text.rstrip())
    while role == "tool" and text.endswith(_REMINDER_END, position, last):
        found = text.rfind(_REMINDER_START, position, last)
        if found < 0:
            break
        last = found
        while last > position and text[last - 1].isspace():
            last -= 1
    return text if position == start and last == trimmed else text[position:last]


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _find_block_end(text: str, position: int, role: str, words: list[str]) -> int | None:
    """Where the block at `position` ends, and adds the words in it, or None if there is none, or it is not closed."""
    if role == "user" and text.startswith("<command-", position):
        return _read_command(text, position, words)
    if not text.startswith(_STARTS_BY_ROLE[role], position):
        # One comparison for all: most texts have no block.
        return None
    for block in _BLOCKS_BY_ROLE[role]:
        if not text.startswith(block.start, position):
            continue
        end = len(text)
        if block.end:
            found = text.find(block.end, position + len(block.start))
            if found < 0:
                return None
            end = found + len(block.end)
        for before, after in block.words:
            found = text.find(before, position, end)
            if found >= 0:
                first = found + len(before)
                last = text.find(after, first, end) if after else end
                words.append(text[first : last if last >= 0 else end].strip())
        return end
    return None


def _read_command(text: str, position: int, words: list[str]) -> int | None:
    """Reads a slash command of Claude Code. Its name and arguments are words of the user, if it has arguments."""
    values: dict[str, str] = {}
    end: int | None = None
    while tag := next((each for each in _COMMAND_TAGS if text.startswith(f"<{each}>", position)), None):
        found = text.find(f"</{tag}>", position)
        if found < 0:
            break
        values[tag] = text[position + len(tag) + 2 : found].strip()
        end = found + len(tag) + 3
        position = _skip_space(text, end)
    if values.get("command-args"):
        words.append(f"{values.get('command-name', '')} {values['command-args']}".strip())
    return end
