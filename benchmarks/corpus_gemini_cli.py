"""Reads a session file of Gemini CLI without Quire: one JSON object with all messages.

A reply holds its calls with their results. Messages of the types `info`, `warning` and `error` are notes on the screen.
Tokens of thoughts are output.
"""

import json
from pathlib import Path
from typing import Any

from corpus_facts import Facts, Item, Tokens, digest_call, digest_texts, list_texts

CONTEXT_START = "This is the Gemini CLI. We are setting up the context"
"""Begins the first prompt, which the program writes."""


def read_gemini_cli(path: Path) -> Facts:
    document = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    facts = Facts("gemini-cli", document["sessionId"])
    for message in document["messages"]:
        if message["type"] == "user":
            texts = list_texts(message["content"])
            by = "harness" if texts[0].startswith(CONTEXT_START) else "person"
            facts.path.append(Item("user", digest_texts(texts), by=by))
        elif message["type"] == "gemini":
            facts.path += _read_reply(message)
            tokens = message.get("tokens") or {}
            if tokens.get("input") or tokens.get("output"):
                output = (tokens.get("output") or 0) + (tokens.get("thoughts") or 0)
                counts = Tokens(1, tokens["input"], output, tokens.get("cached") or 0)
                facts.add_request(message.get("model"), counts, message["timestamp"])
        else:
            continue
        facts.add_time(message["timestamp"])
    return facts


def _read_reply(message: dict[str, Any]) -> list[Item]:
    id_, calls = message["id"], message.get("toolCalls") or []
    thoughts = [
        "\n".join(filter(None, map(each.get, ("subject", "description")))) for each in message.get("thoughts") or ()
    ]
    items = [Item("thinking", digest_texts([thought]), reply=id_) for thought in thoughts]
    items += [Item("text", digest_texts([text]), reply=id_) for text in list_texts(message.get("content")) if text]
    items += [Item("call", call["id"], digest_call(call["name"], call["args"]), "", id_) for call in calls]
    for call in calls:
        for result in call.get("result") or ():
            response = result["functionResponse"]["response"]
            text = response.get("output", response.get("error"))
            items.append(Item("result", call["id"], digest_texts([text if isinstance(text, str) else str(response)])))
    return items
