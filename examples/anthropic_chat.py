"""A chat with the Anthropic client, and what the model saw for its last reply."""

import os

from anthropic import Anthropic

import quire.sync

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


def main() -> None:
    client = Anthropic()
    with quire.sync.open(DATABASE_URL, model="claude-sonnet-5", instructions="Be brief.") as engine:
        conversation = engine.conversation("anthropic-chat")
        for question in ("What is the tallest lighthouse in Europe?", "When was it built?"):
            request = conversation.prepare(question)
            reply = client.messages.create(**request.to_messages())
            entry = conversation.record(reply)
            print(f"> {question}\n{entry.message.text}")
        # What the model saw for the last reply, with the reason for each part.
        for decision in conversation.manifest(entry.seq).included:
            print(f"{decision.slot}: {decision.tokens} tokens, {decision.reason}")


if __name__ == "__main__":
    main()
