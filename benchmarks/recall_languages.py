"""Recall in other languages: the share of the answering turns within 2,000 tokens, against English.

The same dialogues in seven languages (tests/infra/dialogues.py), archived among generated turns; each question goes
through `prepare`, and the recalled messages are read from the manifest.
"""

import argparse
import asyncio
from pathlib import Path

from infra.dialogues import LANGUAGE_CODES, Dialogue, load_dialogues
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.llm.onnx_encoder import load_onnx_encoder
from quire.search.segments import IndexedMessage
from quire.store import SqlStore
from recall_data import BUDGETS, DatasetChat, LabelledQuestion, RecallScores, count_tokens
from recall_requests import RecallBenchmark
from recall_scale import open_sqlite_database
from support import Report

FILLERS_PER_DAY = 24
"""Generated turns of a day, over eight weeks: more than 25,000 tokens in each dialogue."""
QUICK_FILLERS_PER_DAY = 6
MIN_ENGLISH_SHARE = 0.85
"""The least share of English that a language must reach."""
BUDGET = 2_000


def to_chat(dialogue: Dialogue, *, fillers_per_day: int) -> DatasetChat:
    messages: list[IndexedMessage] = []
    numbers: dict[str, int] = {}
    for number, turn in enumerate(dialogue.generate_turns(fillers_per_day=fillers_per_day), start=1):
        name = dialogue.speakers[turn.speaker] if dialogue.name == "chat" else None
        role = ("user", "assistant")[turn.speaker]
        at = int(turn.at.timestamp()) * 1_000_000
        messages.append(IndexedMessage(number, role, name, at, turn.text, count_tokens(turn.text)))
        if turn.label is not None:
            numbers[turn.label] = number
    questions = [
        LabelledQuestion(each.text, each.kind, frozenset(numbers[label] for label in each.labels))
        for each in dialogue.questions
    ]
    return DatasetChat(dialogue.name, messages, questions)


async def measure_languages(embedder: Embedder | None, *, fillers_per_day: int) -> list[tuple[str, int, RecallScores]]:
    results: list[tuple[str, int, RecallScores]] = []
    async with open_sqlite_database() as (url, _), SqlStore.open(url) as store:
        for language in LANGUAGE_CODES:
            chats = [to_chat(each, fillers_per_day=fillers_per_day) for each in load_dialogues(language)]
            tokens = sum(message.tokens for chat in chats for message in chat.messages)
            recall = await RecallBenchmark(store, embedder).measure(chats, f"{language}-{embedder is not None}")
            results.append((language, tokens, recall))
    return results


async def run(*, quick: bool, encoder: Path | None) -> Report:
    report = Report("recall_languages")
    embedders = [load_local_embedder(), None, *([load_onnx_encoder(encoder)] if encoder is not None else [])]
    for embedder in embedders:
        rows: list[tuple[object, ...]] = []
        english = 0.0
        fillers = QUICK_FILLERS_PER_DAY if quick else FILLERS_PER_DAY
        for language, tokens, recall in await measure_languages(embedder, fillers_per_day=fillers):
            share = recall.mean_shares[BUDGETS.index(BUDGET)]
            english = english or share
            shares = " / ".join(f"{each:.1f}" for each in recall.mean_shares)
            rows.append((language, tokens, shares, share / english))
            if embedder is embedders[0]:
                report.require_at_most(f"{language}.below_english", 1 - share / english, 1 - MIN_ENGLISH_SHARE)
        method = embedder.name if embedder is not None else "words and structure only"
        report.print_table(
            f"Recall by language, {method}", ("language", "tokens", "share at 1k / 2k / 4k / 8k", "of English"), rows
        )
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer generated turns")
    parser.add_argument("--encoder", type=Path, help="the folder of an ONNX sentence encoder, measured too")
    options = parser.parse_args()
    asyncio.run(run(quick=options.quick, encoder=options.encoder)).print_goals_and_exit()
