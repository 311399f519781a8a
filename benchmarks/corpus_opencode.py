"""Reads an exported session of opencode without Quire: one JSON object with the session and its messages.

An assistant's message is one reply, with its calls and their results in place; each step of it is one request. Tokens
of reasoning are output. A message that is marked as a summary is a compaction; the compaction's part in the user's
message before it names the first message that is kept.
"""

import json
from pathlib import Path
from typing import Any

from corpus_facts import Compaction, Facts, Item, Tokens, digest_call, digest_texts


def read_opencode(path: Path) -> Facts:
    document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    info = document["info"]
    facts = Facts("opencode", info["id"], info.get("version") or "", parent=info.get("parentID"))
    positions: dict[str, int] = {}
    """Number of the items before each message."""
    requested: dict[str, Any] = {}
    for message in document["messages"]:
        info, parts = message["info"], message["parts"]
        positions[info["id"]] = len(facts.path)
        items = _read_reply(info["id"], parts) if info["role"] == "assistant" else _read_prompt(parts, facts)
        if info["role"] == "assistant":
            _count_requests(info, parts, facts)
        if info.get("summary") is True:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            tail = positions.get(requested.get("tail_start_id") or "", len(facts.path))
            kept = tuple(sorted(item.key for item in facts.path[tail:] if item.kind != "thinking"))
            facts.compactions.append(Compaction(facts.count_replies(), "summary", digest_texts(texts), kept))
            items = []
        requested = next((part for part in parts if part["type"] == "compaction"), {})
        facts.path += items
        if items:
            facts.add_time(info["time"].get("created"))
    return facts


def _read_prompt(parts: list[dict[str, Any]], facts: Facts) -> list[Item]:
    texts, is_typed = list[str](), False
    for part in parts:
        if part["type"] == "text" and part["text"] and not part.get("ignored"):
            texts.append(part["text"])
            is_typed |= facts.parent is None and not part.get("synthetic")
        elif part["type"] == "file":
            texts += _name_files([part])
    return [Item("user", digest_texts(texts), by="person" if is_typed else "harness")] if texts else []


def _read_reply(id_: str, parts: list[dict[str, Any]]) -> list[Item]:
    items, results = list[Item](), list[Item]()
    for part in parts:
        if part["type"] == "reasoning":
            items.append(Item("thinking", digest_texts([part["text"]]), reply=id_))
        elif part["type"] == "text" and part["text"] and not part.get("ignored"):
            items.append(Item("text", digest_texts([part["text"]]), reply=id_))
        elif part["type"] == "tool":
            state = part["state"]
            items.append(Item("call", part["callID"], digest_call(part["tool"], state.get("input") or {}), "", id_))
            text = state.get("error") if state["status"] == "error" else state.get("output")
            if text is not None:
                texts = [text, *_name_files(state.get("attachments") or [])]
                results.append(Item("result", part["callID"], digest_texts(texts)))
        elif part["type"] == "step-finish":
            items, results = items + results, []
    return items + results


def _name_files(files: list[dict[str, Any]]) -> list[str]:
    """What stands for each file whose data is in the session."""
    kinds = ("image" if str(file.get("mime")).startswith("image/") else "file" for file in files)
    return [f"[{kind}]" for file, kind in zip(files, kinds, strict=True) if file["url"].startswith("data:")]


def _count_requests(info: dict[str, Any], parts: list[dict[str, Any]], facts: Facts) -> None:
    for step in [part for part in parts if part["type"] == "step-finish"] or [info]:
        counts = step["tokens"]
        read, written = counts["cache"]["read"], counts["cache"]["write"]
        tokens = Tokens(1, counts["input"] + read + written, counts["output"] + counts["reasoning"], read, written)
        if tokens.input or tokens.output:
            facts.add_request(info["modelID"], tokens, info["time"].get("created"), cost=step.get("cost"))
