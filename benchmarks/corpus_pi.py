"""Reads a session of pi without Quire.

Lines follow each other in the first version of the format, and name their parent in later ones. A compaction names the
first entry that is kept, by its number among the file's entries or by its id. A command that a person ran is said to
the model in the program's words. A session that was branched from another begins with a copy of its lines, whose
requests have the times of the first.
"""

from pathlib import Path
from typing import Any

from corpus_facts import Compaction, Facts, Item, Tokens, digest_call, digest_texts, list_texts, read_lines
from corpus_trees import find_withdrawn


def read_pi(path: Path, counted: set[object]) -> Facts:
    entries = list(read_lines(path))
    header = entries[0]
    origin = header.get("branchedFrom") or header.get("parentSession")
    parent = Path(origin).stem.rpartition("_")[2] if origin else None
    facts = Facts("pi", header["id"], str(header.get("version") or 1), parent=parent)
    nodes, parents, previous = dict[str, list[Item]](), dict[str, str](), ""
    compactions: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries):
        node, message = entry.get("id") or f"line {number}", entry.get("message") or {}
        nodes[node] = _read_items(message, node)
        parents[node] = entry.get("parentId") or previous
        previous = node
        if entry["type"] == "compaction":
            compactions[node] = entry
        if nodes[node]:
            facts.add_time(entry["timestamp"])
        _count_request(message, facts, counted)
    sides = find_withdrawn(nodes, parents)
    facts.branches = [[] for _ in set(sides.values())]
    order = list(nodes)
    for node, items in nodes.items():
        (facts.branches[sides[node]] if node in sides else facts.path).extend(items)
        if node in compactions:
            made = compactions[node]
            index, id_ = made.get("firstKeptEntryIndex"), made.get("firstKeptEntryId")
            first = index if index is not None else order.index(id_) if id_ in nodes else order.index(node)
            kept = {
                item.key for each in order[first : order.index(node)] for item in nodes[each] if item.kind != "thinking"
            }
            digest = digest_texts([made["summary"]])
            facts.compactions.append(Compaction(facts.count_replies(), "summary", digest, tuple(sorted(kept))))
    return facts


def _read_items(message: dict[str, Any], node: str) -> list[Item]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    match message.get("role"):
        case "assistant":
            items: list[Item] = []
            for block in blocks:
                if block["type"] == "thinking":
                    items.append(Item("thinking", digest_texts([block["thinking"]]), reply=node))
                elif block["type"] == "text" and block["text"]:
                    items.append(Item("text", digest_texts([block["text"]]), reply=node))
                elif block["type"] == "toolCall":
                    digest = digest_call(block["name"], block["arguments"])
                    items.append(Item("call", block["id"], digest, reply=node))
            return items
        case "toolResult":
            return [Item("result", message["toolCallId"], digest_texts(list_texts(blocks)))]
        case "bashExecution":
            return [Item("user", digest_texts([_write_command(message)]), by="person")]
        case "user":
            return [Item("user", digest_texts(list_texts(blocks)), by="person")]
        case _:
            return []


def _write_command(message: dict[str, Any]) -> str:
    output = f"```\n{message['output']}\n```" if message.get("output") else "(no output)"
    text = f"Ran `{message['command']}`\n{output}"
    if message.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif message.get("exitCode"):
        text += f"\n\nCommand exited with code {message['exitCode']}"
    if message.get("truncated") and message.get("fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return text


def _count_request(message: dict[str, Any], facts: Facts, counted: set[object]) -> None:
    usage = message.get("usage") or {}
    read, written = usage.get("cacheRead") or 0, usage.get("cacheWrite") or 0
    tokens = Tokens(1, (usage.get("input") or 0) + read + written, usage.get("output") or 0, read, written)
    key = (message.get("timestamp"), message.get("model"), tokens)
    if (tokens.input or tokens.output) and key in counted:
        facts.shared_requests += 1
    elif tokens.input or tokens.output:
        cost = (usage.get("cost") or {}).get("total")
        facts.add_request(message.get("model"), tokens, message.get("timestamp"), cost=cost)
        counted.add(key)
