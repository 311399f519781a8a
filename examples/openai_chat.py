"""A chat with the OpenAI client. The history is in a database, and every request fits the context window."""

import os

from openai import OpenAI

import quire.sync

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


def main() -> None:
    client = OpenAI()
    with quire.sync.open(DATABASE_URL, model="gpt-4o", instructions="Be brief.") as engine:
        conversation = engine.conversation("openai-chat")
        for question in ("What is the tallest lighthouse in Europe?", "When was it built?"):
            request = conversation.prepare(question)
            reply = client.chat.completions.create(**request.to_chat())
            entry = conversation.record(reply)
            print(f"> {question}\n{entry.message.text}")
        used = conversation.usage()
        print(f"{len(conversation.messages())} messages stored, {used.total_tokens:,} tokens in the next request")


if __name__ == "__main__":
    main()
