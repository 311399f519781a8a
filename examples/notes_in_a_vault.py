"""Questions about a folder of Markdown notes: links and paths in a message bring their documents into the request."""

import os
import tempfile
from pathlib import Path

from openai import OpenAI

import quire.sync

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")
NOTES = {
    "Water mills.md": "# Water mills\n\nThe mill at Elm runs from March to November. See [[River levels]].\n",
    "River levels.md": "# River levels\n\nBelow 40 cm the wheel stops. Measured at the bridge.\n",
    "data/levels.csv": "day,cm\nmonday,52\ntuesday,38\n",
}


def write_notes(folder: Path) -> None:
    for name, text in NOTES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    client = OpenAI()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_notes(folder)
        with quire.sync.open(DATABASE_URL, model="gpt-4o", vault=folder) as engine:
            conversation = engine.conversation("notes")
            request = conversation.prepare("Does the mill of [[Water mills]] run on Tuesday? @data/levels.csv")
            for decision in request.manifest.included:
                print(f"{decision.slot}: {decision.name} ({decision.tokens} tokens, {decision.reason})")
            reply = client.chat.completions.create(**request.to_chat())
            print(conversation.record(reply).message.text)


if __name__ == "__main__":
    main()
