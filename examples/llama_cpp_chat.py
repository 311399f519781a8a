"""A chat with a local model behind an OpenAI-compatible server, in a context window that the chat soon exceeds."""

import os

from openai import OpenAI

import quire.sync

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")
SERVER_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
CONTEXT_TOKENS = 512
REPLY_TOKENS = 64


def main() -> None:
    client = OpenAI(base_url=SERVER_URL, api_key="none")
    model = client.models.list().data[0].id
    with quire.sync.open(
        DATABASE_URL, model=model, context_limit=CONTEXT_TOKENS, reserved_response_tokens=REPLY_TOKENS
    ) as engine:
        conversation = engine.conversation("llama-cpp-chat")
        compactions = 0
        for day in range(1, 13):
            request = conversation.prepare(f"Day {day}. Write two sentences about the weather at sea.")
            reply = client.chat.completions.create(**request.to_chat(), max_tokens=REPLY_TOKENS)
            compactions += len(request.compactions)
            entry = conversation.record(reply)
            print(f"day {day}: {request.tokens} tokens sent; {entry.message.text[:60]!r}")
        print(f"{len(conversation.messages())} messages stored, {compactions} compactions")


if __name__ == "__main__":
    main()
