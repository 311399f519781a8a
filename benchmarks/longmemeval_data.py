"""LongMemEval-S (xiaowu0162/longmemeval-cleaned): questions, their haystacks of sessions, metrics, and a floor.

The folder has `questions.jsonl` with a question a line (`id`, `type`, `question`, `date`, `answer_sessions`, `haystack`
of session id and date) and `sessions.jsonl.zst` with a session a line (`id`, `turns` of `role`, `content` and, where it
is evidence, `has_answer`). The data is not part of the project. Labels never reach the database: sessions get neutral
names in an order that the question's id shuffles.
"""

import json
import random
import re
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from quire.importers.readers import import_zstd

WINDOW_LOG_MAX = 27
_STOP_WORD_LIST = (
    "a an and are as at be been by did do does for from had has have how i in is it many me my of on or that the"
    " their them this to was were what when where which who why will with you your"
)
STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


class Turn(NamedTuple):
    role: str
    text: str
    is_evidence: bool


class Session(NamedTuple):
    name: str
    """Neutral: it tells neither the label nor the order."""
    at: int
    turns: tuple[Turn, ...]
    is_gold: bool


class HaystackQuestion(NamedTuple):
    id: str
    kind: str
    text: str
    at: int
    sessions: tuple[Session, ...]
    """By date, each once."""
    is_tuning: bool
    """In the half on which weights may be chosen: every second question, in the publisher's order."""

    @property
    def gold(self) -> frozenset[str]:
        return frozenset(session.name for session in self.sessions if session.is_gold)


def load_questions(folder: Path, *, count: int | None = None, seed: int = 7) -> list[HaystackQuestion]:
    """Questions with an answer in the haystack; `count` of them, as many of each type as its share."""
    turns_by_id: dict[str, tuple[Turn, ...]] = {}
    zstd = import_zstd()
    options = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
    with zstd.open(folder / "sessions.jsonl.zst", "rt", encoding="utf-8", options=options) as lines:
        for line in lines:
            session = json.loads(line)
            turns_by_id[session["id"]] = tuple(
                Turn(each["role"], each["content"], bool(each.get("has_answer")))
                for each in session["turns"]
                if each["content"].strip()
            )
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text("utf-8").splitlines()]
    numbered = [(number, row) for number, row in enumerate(rows) if not row["id"].endswith("_abs")]
    if count is not None and count < len(numbered):
        by_type: defaultdict[str, list[int]] = defaultdict(list)
        for number, row in numbered:
            by_type[row["type"]].append(number)
        chance = random.Random(seed)
        share = count / len(numbered)
        chosen = {
            each for kind in sorted(by_type) for each in chance.sample(by_type[kind], round(share * len(by_type[kind])))
        }
        numbered = [(number, row) for number, row in numbered if number in chosen]
    return [_make_question(row, turns_by_id, is_tuning=number % 2 == 0) for number, row in numbered]


def _make_question(row: Mapping, turns_by_id: Mapping[str, tuple[Turn, ...]], *, is_tuning: bool) -> HaystackQuestion:
    dates: dict[str, int] = {}
    for session, written in row["haystack"]:
        dates.setdefault(session, _parse_date(written))
    # Gold ids begin with "answer_", which must not decide the order of a day.
    ids = sorted(dates, key=lambda each: (dates[each], each.removeprefix("answer_")))
    numbers = list(range(len(ids)))
    random.Random(row["id"]).shuffle(numbers)
    gold = set(row["answer_sessions"])
    sessions = tuple(
        Session(f"c{number:03d}", dates[each], turns_by_id[each], each in gold)
        for number, each in zip(numbers, ids, strict=True)
    )
    return HaystackQuestion(row["id"], row["type"], row["question"], _parse_date(row["date"]), sessions, is_tuning)


def _parse_date(written: str) -> int:
    return int(datetime.strptime(written, "%Y/%m/%d (%a) %H:%M").replace(tzinfo=UTC).timestamp()) * 1_000_000


def score_ranking(ranked: Sequence[str], gold: frozenset[str]) -> dict[str, float]:
    """Metrics of session names, best first, without repeats."""
    scores = {f"any@{count}": float(not gold.isdisjoint(ranked[:count])) for count in (1, 5, 10)}
    return scores | {f"all@{count}": float(gold <= set(ranked[:count])) for count in (5, 10)}


def rank_by_fts(question: HaystackQuestion) -> list[str]:
    """The floor: SQLite's FTS5 with BM25 and a Porter stemmer, a document a session, the question's words by OR."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE d USING fts5(name UNINDEXED, body, tokenize='porter unicode61')")
    bodies = ((each.name, "\n".join(turn.text for turn in each.turns)) for each in question.sessions)
    database.executemany("INSERT INTO d VALUES (?, ?)", bodies)
    words = list(dict.fromkeys(re.findall(r"\w+", question.text.lower())))
    words = [word for word in words if word not in STOP_WORDS] or words
    match = " OR ".join(f'"{word}"' for word in words)
    found = database.execute("SELECT name FROM d WHERE d MATCH ? ORDER BY bm25(d)", (match,)).fetchall()
    database.close()
    return [name for (name,) in found]


def format_mean(values: Sequence[float]) -> str:
    """Mean and standard error, in percent."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ±{100 * error:.1f}"
