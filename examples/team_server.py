"""A client of a team's server: any OpenAI client with the server's address and a Quire key, then a search."""

import json
import os
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from openai import OpenAI

SERVER_URL = os.environ.get("QUIRE_URL", "http://127.0.0.1:8300")
KEY = os.environ["QUIRE_KEY"]


def main() -> None:
    client = OpenAI(base_url=f"{SERVER_URL}/v1", api_key=KEY)
    history = [{"role": "user", "content": "Which port did we choose for the relay?"}]
    reply = client.chat.completions.create(model="gpt-4o", messages=history)
    print(reply.choices[0].message.content)
    for hit in search("relay port"):
        print(f"{hit['conversation']['id']} #{hit['entry']['seq']}: {hit['excerpt']}")


def search(query: str) -> list[dict[str, Any]]:
    """Searches all conversations of the key's tenant."""
    url = f"{SERVER_URL}/api/search?{urlencode({'query': query})}"
    with urlopen(Request(url, headers={"Authorization": f"Bearer {KEY}"})) as response:
        return json.load(response)["messages"]


if __name__ == "__main__":
    main()
