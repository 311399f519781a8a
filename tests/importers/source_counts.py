"""Counts of a source's files that are made without the importers: of messages, compactions, sub-agents and tokens."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]


class SourceCounts(NamedTuple):
    messages: int
    """Without compactions."""
    compactions: int = 0
    sub_agents: int = 0
    input_tokens: int = 0
    """Cached tokens included."""
    cached_tokens: int = 0
    output_tokens: int = 0


def iter_lines(folder: Path) -> Iterator[Json]:
    for path in sorted(folder.rglob("*.jsonl")):
        yield from map(json.loads, path.read_text().splitlines())


def load_files(folder: Path, pattern: str) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob(pattern))]


def add_up(counts: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    rows = list(counts)
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


def count_opencode(folder: Path) -> SourceCounts:
    [path] = folder.glob("*.db")
    with closing(sqlite3.connect(path)) as connection:
        calls, texts, compactions, sub_agents, *tokens = connection.execute(
            """SELECT
            (SELECT count(*) FROM part WHERE data ->> 'type' = 'tool' AND data -> 'state' ->> 'output' IS NOT NULL),
            (SELECT count(DISTINCT message_id) FROM part WHERE data ->> 'type' IN ('text', 'tool')),
            (SELECT count(*) FROM part WHERE data ->> 'type' = 'compaction'),
            (SELECT count(*) FROM session WHERE parent_id IS NOT NULL),
            sum(data -> 'tokens' ->> 'input' + (data -> 'tokens' -> 'cache' ->> 'read')
                + (data -> 'tokens' -> 'cache' ->> 'write')),
            sum(data -> 'tokens' -> 'cache' ->> 'read'), sum(data -> 'tokens' ->> 'output')
            FROM message WHERE data ->> 'role' = 'assistant'"""
        ).fetchone()
    return SourceCounts(calls + texts - compactions, compactions, sub_agents, *tokens)


def count_gemini(folder: Path) -> SourceCounts:
    lines = list(iter_lines(folder))
    versions = [line for line in lines if "id" in line]
    versions += [each for line in lines for each in line.get("$set", {}).get("messages", [])]
    users = {
        each["id"]
        for each in versions
        if each["type"] == "user" and not all("functionResponse" in part for part in each["content"])
    }
    summaries = {each["id"] for each in versions if "<state_snapshot>" in json.dumps(each["content"])}
    tokens = {each["id"]: each["tokens"] for each in versions if each["type"] == "gemini" and "tokens" in each}
    calls = {call["id"] for each in versions for call in each.get("toolCalls", [])}
    replies = {each["id"] for each in versions if each["type"] == "gemini"}
    used = add_up((each["input"], each["cached"], each["output"] + each["thoughts"]) for each in tokens.values())
    sub_agents = sum(line.get("kind") == "subagent" for line in lines)
    return SourceCounts(len(users - summaries) + len(replies) + len(calls), len(summaries), sub_agents, *used)


def count_qwen(folder: Path) -> SourceCounts:
    lines = list(iter_lines(folder))
    events = [line["systemPayload"]["uiEvent"] for line in lines if line.get("subtype") == "ui_telemetry"]
    agents = [event for event in events if event.get("subagent_name")]
    messages = sum(line["type"] in ("user", "assistant", "tool_result") for line in lines) + len(agents)
    replies = [line["usageMetadata"] for line in lines if "usageMetadata" in line]
    used = [
        (each["promptTokenCount"], each["cachedContentTokenCount"], each["candidatesTokenCount"]) for each in replies
    ]
    used += [
        (each["input_token_count"], each["cached_content_token_count"], each["output_token_count"]) for each in agents
    ]
    compactions = sum(line.get("subtype") == "chat_compression" for line in lines)
    return SourceCounts(messages, compactions, len({each["prompt_id"] for each in agents}), *add_up(used))


def count_pi(folder: Path) -> SourceCounts:
    lines = list(iter_lines(folder))
    messages = [line["message"] for line in lines if line["type"] == "message"]
    usages = [each["usage"] for each in messages if "usage" in each]
    used = add_up((each["input"] + each["cacheRead"], each["cacheRead"], each["output"]) for each in usages)
    return SourceCounts(len(messages), sum(line["type"] == "compaction" for line in lines), 0, *used)


def count_copilot_cli(folder: Path) -> SourceCounts:
    lines = list(iter_lines(folder))
    kinds = [line["type"] for line in lines]
    usages = [line["data"]["usage"] for line in lines if line["type"] == "session.usage_record"]
    usages += [line["data"]["compactionTokensUsed"] for line in lines if "compactionTokensUsed" in line["data"]]
    return SourceCounts(
        sum(kinds.count(kind) for kind in ("user.message", "assistant.message", "tool.execution_complete")),
        kinds.count("session.compaction_complete"),
        kinds.count("subagent.started"),
        *add_up((each["inputTokens"], each["cacheReadTokens"], each["outputTokens"]) for each in usages),
    )


def count_continue(folder: Path) -> SourceCounts:
    items = [item for session in load_files(folder, "*-*.json") for item in session["history"]]
    results = sum("output" in state for item in items for state in item.get("toolCallStates", []))
    usages = [item["message"]["usage"] for item in items if "usage" in item["message"]]
    used = add_up(
        (each["prompt_tokens"], each["prompt_tokens_details"]["cached_tokens"], each["completion_tokens"])
        for each in usages
    )
    return SourceCounts(len(items) + results, sum("conversationSummary" in item for item in items), 0, *used)


def count_anthropic_blocks(messages: list[Json]) -> int:
    """Messages, of which each result of a tool is one of its own."""
    count = 0
    for message in messages:
        blocks = message["content"]
        results = 0 if isinstance(blocks, str) else sum(block["type"] == "tool_result" for block in blocks)
        count += results + (results < len(blocks))
    return count


def count_cline(folder: Path) -> SourceCounts:
    messages = [each for session in load_files(folder, "*.messages.json") for each in session["messages"]]
    usages = [each["metrics"] for each in messages if "metrics" in each]
    used = add_up((each["inputTokens"], each.get("cacheReadTokens", 0), each["outputTokens"]) for each in usages)
    return SourceCounts(count_anthropic_blocks(messages), 0, 0, *used)


def count_droid(folder: Path) -> SourceCounts:
    messages = [line["message"] for line in iter_lines(folder) if line["type"] == "message"]
    return SourceCounts(count_anthropic_blocks(messages))


def count_aider(folder: Path) -> SourceCounts:
    text = (folder / ".aider.chat.history.md").read_text()
    prompts = len(re.findall(r"(?<!\n)\n#### |\n\n#### ", text))
    used = re.findall(r"^> Tokens: (\d+) sent, (\d+) received", text, re.MULTILINE)
    return SourceCounts(
        prompts + len(used), 0, 0, sum(int(sent) for sent, _ in used), 0, sum(int(received) for _, received in used)
    )


COUNTERS: dict[str, Callable[[Path], SourceCounts]] = {
    "aider": count_aider,
    "cline": count_cline,
    "continue": count_continue,
    "copilot-cli": count_copilot_cli,
    "droid": count_droid,
    "gemini": count_gemini,
    "kilo": count_opencode,
    "opencode": count_opencode,
    "pi": count_pi,
    "qwen-code": count_qwen,
}
