"""A stand-in for an agent program: reports its arguments and environment, calls the gateway once, and exits.

With `--wait` it waits for Ctrl-C. With `FAKE_AGENT_FOLDER` it calls the gateway once more for each file `call-N` that
appears there, writes the status to `answer-N`, and ends with the file `end`; like real agents, it retries what is
answered 503. It reads the gateway's address and key from where the program whose name it has would read them.
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

BODY = {"model": "any-model", "messages": [{"role": "user", "content": "Hello from the agent"}]}


def find_gateway(program: str) -> tuple[str, dict[str, str]]:
    """Returns the base URL without /v1, and the headers with the key."""
    if program == "codex":
        words = sys.argv[1:]
        flags = dict(each.split("=", 1) for flag, each in pairwise(words) if flag == "-c")
        provider = f"model_providers.{json.loads(flags['model_provider'])}"
        url = json.loads(flags[f"{provider}.base_url"]).removesuffix("/v1")
        header = flags.get(f"{provider}.env_http_headers.X-Quire-Key")
        if header is not None:
            return url, {"X-Quire-Key": os.environ[json.loads(header)], "Authorization": "Bearer sk-own-login"}
        return url, {"Authorization": f"Bearer {os.environ[json.loads(flags[f'{provider}.env_key'])]}"}
    if program == "opencode":
        options = json.loads(os.environ["OPENCODE_CONFIG_CONTENT"])["provider"]["quire"]["options"]
        return options["baseURL"].removesuffix("/v1"), {"Authorization": f"Bearer {options['apiKey']}"}
    if program == "claude" and "ANTHROPIC_CUSTOM_HEADERS" in os.environ:
        headers = dict(line.split(": ", 1) for line in os.environ["ANTHROPIC_CUSTOM_HEADERS"].splitlines())
        return os.environ["ANTHROPIC_BASE_URL"], {**headers, "Authorization": "Bearer sk-own-login"}
    if program == "claude":
        return os.environ["ANTHROPIC_BASE_URL"], {"Authorization": f"Bearer {os.environ['ANTHROPIC_AUTH_TOKEN']}"}
    return os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"
    }


def call_gateway(url: str, headers: dict[str, str]) -> int:
    data = json.dumps(BODY).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data, {**headers, "Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def main() -> None:
    report: dict[str, Any] = {"argv": sys.argv[1:], "environ": dict(os.environ)}
    report["url"], headers = find_gateway(Path(sys.argv[0]).name)
    report["status"] = call_gateway(report["url"], headers)
    report["key"] = headers.get("X-Quire-Key", headers["Authorization"].removeprefix("Bearer "))
    report["interrupt_is_default"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    Path(os.environ["FAKE_AGENT_REPORT"]).write_text(json.dumps(report))
    if "--wait" in sys.argv:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            sys.exit(7)
    if "FAKE_AGENT_FOLDER" in os.environ:
        follow_calls(Path(os.environ["FAKE_AGENT_FOLDER"]), report["url"], headers)
    sys.exit(int(os.environ.get("FAKE_AGENT_EXIT", "0")))


def follow_calls(folder: Path, url: str, headers: dict[str, str]) -> None:
    number = 1
    while not (folder / "end").exists():
        if (folder / f"call-{number}").exists():
            while (status := call_gateway(url, headers)) == 503:
                time.sleep(0.2)
            (folder / f"answer-{number}.new").write_text(str(status))
            (folder / f"answer-{number}.new").rename(folder / f"answer-{number}")
            number += 1
        time.sleep(0.02)


main()
