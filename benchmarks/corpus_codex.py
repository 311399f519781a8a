"""Reads a rollout of Codex without Quire.

A request is a `token_count` whose total differs from the one before; it ends a reply, as does everything that is not
the model's. The record may stand before or after the output of the reply's calls. A rollout that begins with a second
`session_meta` of another id repeats that session's lines, all written in one burst, up to its own `task_started`.
A compaction without a text is opaque: the provider made its summary, or there is none but the messages that it kept.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from corpus_facts import Compaction, Facts, Item, Tokens, digest_call, digest_json, digest_texts, list_texts, read_lines

BURST_SECONDS = 0.5


def read_codex(path: Path) -> Facts:
    rows = [row for row in read_lines(path) if isinstance(row.get("payload"), dict)]
    meta = next(row["payload"] for row in rows if row["type"] == "session_meta")
    facts = Facts("codex", meta["id"], meta.get("cli_version") or "")
    agent = meta["source"].get("subagent") if isinstance(meta.get("source"), dict) else None
    spawn: dict[str, Any] = agent if isinstance(agent, dict) else {}
    spawned_by = (spawn.get("thread_spawn") or {}).get("parent_thread_id") or meta.get("parent_thread_id")
    facts.parent = spawned_by or meta.get("forked_from_id")
    events = [row["payload"] for row in rows if row["type"] == "event_msg"]
    typed = {str(event["message"]).strip() for event in events if event["type"] == "user_message"}
    facts.copied_lines = start = _find_own_start(rows, meta["id"])
    model, total, reply, count = "", None, "", 0
    for row in rows[:start]:
        if row["type"] == "event_msg" and row["payload"]["type"] == "token_count":
            total = (row["payload"].get("info") or {}).get("total_token_usage", total)
        model = row["payload"].get("model") or model if row["type"] == "turn_context" else model
    for row in rows[start:]:
        payload, kind = row["payload"], row["payload"].get("type")
        if row["type"] == "turn_context":
            model = payload.get("model") or model
        elif row["type"] == "event_msg" and kind == "token_count" and payload.get("info"):
            if payload["info"].get("total_token_usage") != total:
                total = payload["info"]["total_token_usage"]
                facts.add_request(model, _read_tokens(payload["info"].get("last_token_usage") or {}), row["timestamp"])
                reply = ""
        elif row["type"] == "compacted":
            facts.compactions.append(_read_compaction(payload, facts))
            reply = ""
        elif row["type"] == "response_item":
            is_own = kind in ("reasoning", "message") and payload.get("role", "assistant") == "assistant"
            if not is_own and not str(kind).endswith("_call"):
                reply = ""
            elif not reply:
                count += 1
                reply = f"reply {count}"
            facts.add_time(row["timestamp"])
            for item in _read_items(payload, reply):
                is_typed = item.kind == "user" and item.by == "person" and spawned_by is None
                is_typed = is_typed and any(text.strip() in typed for text in list_texts(payload["content"]))
                by = "person" if is_typed else "harness"
                facts.path.append(item._replace(by=by) if item.kind == "user" else item)
    return facts


def _find_own_start(rows: list[dict[str, Any]], session: str) -> int:
    """The first row that repeats no other session's."""
    ids = [row["payload"]["id"] if row["type"] == "session_meta" else session for row in rows]
    copied = next((index for index, id_ in enumerate(ids) if id_ != session), None)
    if copied is None:
        return 0
    times = [datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).timestamp() for row in rows]
    end = copied + 1
    while end < len(rows) and times[end] - times[end - 1] < BURST_SECONDS:
        end += 1
    # The last line of the burst begins the first turn of its own.
    return end - 1 if rows[end - 1]["payload"].get("type") == "task_started" else end


def _read_items(payload: dict[str, Any], reply: str) -> list[Item]:
    match payload.get("type"):
        case "message" if payload["role"] == "assistant":
            return [Item("text", digest_texts([text]), reply=reply) for text in list_texts(payload["content"]) if text]
        case "reasoning":
            texts = list_texts(payload.get("summary") or payload.get("content"))
            return [Item("thinking", digest_texts(["\n\n".join(texts)]), reply=reply)]
        case "message":
            kind = "user" if payload["role"] == "user" else "system"
            return [Item(kind, digest_texts(list_texts(payload["content"])), by="person" if kind == "user" else "")]
        case "agent_message":
            return [Item("user", digest_texts(list_texts(payload["content"])), by="harness")]
        case "function_call" | "tool_search_call":
            return [
                Item(
                    "call", payload["call_id"], _digest_arguments(payload.get("name"), payload["arguments"]), "", reply
                )
            ]
        case "custom_tool_call":
            return [Item("call", payload["call_id"], digest_call(payload["name"], payload["input"]), "", reply)]
        case "function_call_output" | "custom_tool_call_output":
            return [Item("result", payload["call_id"], digest_texts(list_texts(payload.get("output"))))]
        case "tool_search_output":
            return [Item("result", payload["call_id"], digest_json(payload["tools"]))]
        case _:
            # What the provider searched itself has neither a call id nor a result.
            return []


def _digest_arguments(name: object, arguments: object) -> str:
    try:
        return digest_call(name, json.loads(arguments) if isinstance(arguments, str) else arguments)
    except ValueError:
        return digest_call(name, arguments)


def _read_compaction(payload: dict[str, Any], facts: Facts) -> Compaction:
    earlier = {(item.kind, item.key) for item in facts.path}
    kept = {
        item.key
        for each in payload.get("replacement_history") or ()
        for item in _read_items(each, "")
        if (item.kind, item.key) in earlier
    }
    summary = payload.get("message") or ""
    kind = "summary" if summary else "opaque"
    return Compaction(facts.count_replies(), kind, digest_texts([summary]) if summary else "", tuple(sorted(kept)))


def _read_tokens(usage: dict[str, Any]) -> Tokens:
    names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
    return Tokens(1, *(usage.get(name) or 0 for name in names))
