"""Summaries as models write them, long and short, and with everything that an agent or Quire might stumble over."""

import json
import random

_WORDS = (
    "the relay", "listens on", "`port 7421`", "because", "src/quay/relay.py", "fails with", "ECONNREFUSED", "after",
    "the migration", "of 2026-11-17;", "the user", "wants", "no downtime", "and", "tests/test_tides.py", "is red", "12",
)  # fmt: skip
_LANGUAGES = (
    "Der Nutzer möchte, dass das Relais auf Port 7421 läuft; die Prüfung schlägt fehl, weil die Gezeitentafel fehlt.",
    "ユーザーは中継器をポート7421で動かしたい。潮汐表がないため検査は失敗する。次に表を読み込むこと。",
    "Пользователь хочет, чтобы реле слушало порт 7421; проверка не проходит, потому что нет таблицы приливов.",
    "يريد المستخدم أن يعمل المرحل على المنفذ 7421، ويفشل الاختبار لأن جدول المد والجزر غير موجود.",
    "L'utilisateur veut que le relais écoute sur le port 7421\u00a0; le test échoue\u202f: pas de marées. 🌊⚓️",
)
_CODE = '''```python
def listen(port: int = 7421) -> None:
    """Listens.  Two  spaces stay two."""
\tprint(f"<summary>{port}</summary> $& $1 $` \\\\n")
```
```diff
- PORT = 7420
+ PORT = 7421
```'''
_TAGS = (
    "<files>\n  <file path='a.py'>&lt;done&gt; &amp; tested</file>\n</files>\n<system-reminder>none</system-reminder>"
)


def write_summary(number: int, earlier: str, rng: random.Random) -> str:
    """A summary with its own number, so that no two are equal. `earlier` is a summary that it may quote."""
    forms = (
        _write_list(rng, words=rng.randint(20, 80)),
        _write_list(rng, words=rng.randint(800, 4_000)),
        f"Short: all is as in part {number}, nothing else to say.",
        "\n".join(rng.sample(_LANGUAGES, k=3)),
        f"1. Primary Request:\n{_write_list(rng, words=30)}\n\n2. Code:\n{_CODE}\n",
        f"{_TAGS}\n{_write_list(rng, words=40)}",
        f"The earlier summary was:\n> {earlier[:3_000]}\n\nSince then {_write_list(rng, words=40)}",
        f"This session is being continued from a previous conversation. {_write_list(rng, words=60)}",
        json.dumps({"goal": "relay", "done": _write_list(rng, words=30), "next": ["a", "b"]}, indent=2),
        "| step | state |\n|---|---|\n" + "\n".join(f"| {n} | {rng.random()} |" for n in range(rng.randint(3, 60))),
        _write_list(rng, words=200).replace("\n", "\r\n") + "\r\n\r\n   \t\n",
        f"<analysis>A thought inside.</analysis>\n{_write_list(rng, words=50)}\n</analysis> <analysis> left open",
        "line\u2028separator\u0085and\u00a0spaces\u3000of many kinds\ufeff " + _write_list(rng, words=40),
    )
    return f"{forms[number % len(forms)]}\nPart {number} of {rng.randint(10**6, 10**7)}."


def wrap_as_reply(summary: str, number: int, rng: random.Random) -> str:
    """The reply with the summary, in the ways in which models follow the request for tags."""
    analysis = f"<analysis>\nLet me think.\n{_write_list(rng, words=rng.randint(5, 300))}\n</analysis>"
    forms = (
        f"{analysis}\n\n<summary>\n{summary}\n</summary>",
        f"{analysis}\n<summary>{summary}</summary>\n",
        f"<summary>\n{summary}\n</summary>",
        summary,
        f"{analysis}\n\n{summary}",
    )
    return forms[number % len(forms)]


def _write_list(rng: random.Random, *, words: int) -> str:
    lines: list[str] = []
    while words > 0:
        size = min(words, rng.randint(3, 40))
        lines.append(rng.choice(["", "- ", "1. ", "## ", "    * "]) + " ".join(rng.choices(_WORDS, k=size)))
        words -= size
    return rng.choice(["\n", "\n\n"]).join(lines)
