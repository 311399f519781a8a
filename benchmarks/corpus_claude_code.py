"""Reads a session file of Claude Code without Quire.

Every line with a `uuid` is a link of the chain, whatever its type. A line whose parent was never written follows the
message before it in the file, and so does a new root: the program begins one after a compaction, and for a plan that is
carried out with an empty context. Lines with one message id are one reply. A fork beside a summary is `/compact`.

A queued prompt that the program took in the middle of a turn (`remove`) stands only in `queue-operation` lines where
it wrote no `queued_command` line. The model reads it after the results of the open calls. A popped one was not sent.

Changed later: `<synthetic>` is the program's, no reply (55-, line 226); thinking is a part of a reply (139-, line 102);
a user's line takes its text from the queue (24-, line 977), and a notification that was taken from it without an
attachment was not sent where a version writes any (089-, lines 245 to 248).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpus_facts import Compaction, Facts, Item, Tokens, digest_call, digest_texts, list_texts, read_lines
from corpus_trees import find_withdrawn, order_by_links

HARNESS_START = re.compile(
    r"\s*(<(command-(name|message|args)|local-command-\w+|bash-(input|stdout|stderr)|(task|agent)-notification"
    r"|system-reminder|ide_\w+|ci-monitor-event)\b|\[Request interrupted by user|Caveat: |Operation stopped by hook)"
)
START, QUEUE = "start", "queue"  # parents of what begins the file, and of what only the queue holds


def read_claude_code(path: Path, counted: set[object]) -> Facts:
    lines = list(read_lines(path))
    head = next(line for line in lines if line.get("type") in ("user", "assistant", "attachment", "system"))
    facts = Facts("claude-code", str(head["sessionId"]), str(head.get("version") or ""))
    facts.agents = int(any(line.get("isSidechain") for line in lines))
    _count_requests(lines, facts, counted)
    links = {line["uuid"]: line.get("parentUuid") for line in lines if line.get("uuid") and not line.get("isSidechain")}
    facts.begins_in_middle = next(iter(links.values()), None) not in (None, *links)
    # The node of each line, the items of each node, and the node before each.
    owners, nodes, parents, previous = dict[str, str](), dict[str, list[Item]](), dict[str, str](), START
    summaries = dict[str, dict[str, Any]]()
    for line in order_by_links(_place_queued(lines), "uuid", "parentUuid", set(links)):
        uuid, items = line["uuid"], _read_items(line)
        found = (owners.get(line.get(name) or "") for name in ("parentUuid", "logicalParentUuid"))
        parent = QUEUE if uuid.startswith(QUEUE) else next(filter(None, found), previous)
        node = f"reply {line['message'].get('id')}" if line["type"] == "assistant" else uuid
        if not items and not line.get("isCompactSummary") and node not in nodes:
            owners[uuid] = parent  # which it belongs to, without content
            continue
        if line.get("isCompactSummary"):
            summaries[uuid] = line
        facts.add_time(line.get("timestamp"))
        owners[uuid] = previous = node
        parents.setdefault(node, parent)
        nodes.setdefault(node, []).extend(items)
    sides = find_withdrawn(nodes, parents, {QUEUE, *(parents[node] for node in summaries)})
    facts.branches = [[] for _ in set(sides.values())]
    for node, items in nodes.items():
        if node in summaries:
            facts.compactions.append(_read_compaction(summaries[node], lines, facts))
        (facts.branches[sides[node]] if node in sides else facts.path).extend(items)
    return facts


def _place_queued(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines, with the prompts that only the queue holds as lines of the user's."""
    queued, held, reply = _find_queued(lines), list[dict[str, Any]](), None
    for number, line in enumerate(lines):
        message = line.get("message") or {}
        if number in queued:
            held.append({**line, "uuid": f"{QUEUE} {number}", "type": "user", "message": {"content": queued[number]}})
        elif message and message.get("id") != reply and "'tool_result'" not in str(message["content"])[:200]:
            yield from held
            held, reply = [], message.get("id")
        if line.get("uuid") and not line.get("isSidechain"):
            yield line
    yield from held


def _find_queued(lines: list[dict[str, Any]]) -> dict[int, str]:
    """Prompts that only the queue holds, by the number of the line that took them from it."""
    said = {text.strip() for line in lines for text in list_texts((line.get("message") or {}).get("content"))}
    said |= {str((line.get("attachment") or {}).get("prompt")).strip() for line in lines}
    has_attachments, queue, found = any("attachment" in each for each in lines), list[str](), dict[int, str]()
    for number, line in enumerate(lines):
        text, operation = line.get("content") or "", line.get("operation")
        if line.get("type") == "user" and (said_now := "".join(list_texts(line["message"]["content"]))) in queue:
            queue.remove(said_now)
        elif operation == "enqueue":
            queue.append(text)
        elif operation and queue:
            taken = queue.pop(queue.index(text) if text in queue else 0)
            is_sent = operation == "remove" and taken.strip() not in said and not taken.startswith("/")
            if is_sent and taken and not (has_attachments and HARNESS_START.match(taken)):
                found[number] = taken
    return found


def _read_items(line: dict[str, Any]) -> list[Item]:
    attachment, message = line.get("attachment") or {}, line.get("message") or {}
    content = attachment["prompt"] if attachment.get("type") == "queued_command" else message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    items = list[Item]()
    for block in blocks:
        match block["type"]:
            case "tool_use":
                items.append(Item("call", block["id"], digest_call(block["name"], block["input"]), "", message["id"]))
            case "tool_result":
                items.append(Item("result", block["tool_use_id"], digest_texts(list_texts(block.get("content")))))
            case "thinking":
                items.append(Item("thinking", digest_texts([block["thinking"]]), reply=message["id"]))
            case "text" if line["type"] == "assistant" and block["text"]:
                items.append(Item("text", digest_texts([block["text"]]), reply=message["id"]))
    texts = list_texts([block for block in blocks if block["type"] != "tool_result"])
    if line["type"] == "assistant" and message.get("model") == "<synthetic>":
        return [Item("system", digest_texts(texts))]
    if line["type"] == "assistant" or not any(texts) or line.get("isCompactSummary"):
        return items
    origin = line.get("origin") or attachment.get("origin") or {}
    is_meta = line.get("isMeta") or attachment.get("isMeta") or origin.get("kind", "human") != "human"
    by = "harness" if is_meta or all(map(HARNESS_START.match, texts)) else "person"
    return [*items, Item("user", digest_texts(texts), by=by)]


def _read_compaction(line: dict[str, Any], lines: list[dict[str, Any]], facts: Facts) -> Compaction:
    boundary = next((each for each in lines if each.get("uuid") == line.get("parentUuid")), {}).get("compactMetadata")
    named = ((boundary or {}).get("preservedMessages") or {}).get("uuids") or []
    named_items = (item for each in lines if each.get("uuid") in named for item in _read_items(each))
    kept = {item.key for item in named_items if item.kind != "thinking"} & {item.key for item in facts.path}
    digest = digest_texts(list_texts(line["message"]["content"]))
    return Compaction(facts.count_replies(), "summary", digest, tuple(sorted(kept)))


def _count_requests(lines: list[dict[str, Any]], facts: Facts, counted: set[object]) -> None:
    requests: dict[object, tuple[str, dict[str, Any], str]] = {}
    for line in lines:
        message = (line.get("message") or {}) if line.get("type") == "assistant" else {}
        if (usage := message.get("usage")) and message.get("model") != "<synthetic>":
            key = (message.get("id"), line.get("requestId"))
            # Of several lines of one reply, the last one has all of its output.
            if key not in requests or usage.get("output_tokens", 0) >= requests[key][1].get("output_tokens", 0):
                requests[key] = (str(message.get("model")), usage, line["timestamp"])
    facts.shared_requests = len(requests.keys() & counted)
    for model, usage, at in (request for key, request in requests.items() if key not in counted):
        advice = [turn for turn in usage.get("iterations") or () if turn.get("type") == "advisor_message"]
        for name, each in [(model, usage), *((turn["model"], turn) for turn in advice)]:
            read, written = (each.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
            tokens = Tokens(1, each["input_tokens"] + read + written, each["output_tokens"], read, written)
            hour_tokens = (each.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
            facts.add_request(name, tokens, at, hour_tokens=hour_tokens)
    counted.update(requests)
