"""Fits the weights of the ranker: those of a list on half of LongMemEval-S, those with a budget on two recall sets.

A list: sessions rank by their best message, on every second question (`longmemeval_data.py`, "tuning half"); the other
half is printed alone. With a budget: evidence against all other messages, on REALTALK and BEAM-500K; LoCoMo is printed
alone. Coordinate descent from the weights of `quire.search.ranker` lowers the mean logarithmic loss of evidence against
the rest. It prints weights and changes nothing: adopt them only if `just bench recall` and `longmemeval` hold.
"""

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longmemeval_data import HaystackQuestion, format_mean, load_questions, score_ranking
from quire.engine.embeddings import embed_query
from quire.llm.embeddings import Embedder, load_local_embedder
from quire.search import ranker
from quire.search.catalog import MessageCatalog, SegmentChange
from quire.search.index import merge_segments
from quire.search.postings import ENTRIES_PER_SEGMENT, build_postings
from quire.search.query import MAX_QUERY_WORDS, parse_query
from quire.search.segment_codec import encode_columns
from quire.search.segments import IndexedMessage, build_segment, extend_segment
from quire.search.vectors import FloatArray, truncate_vectors
from recall_data import load_chats

LIST_SCALE = 0.03
"""Difference of two scores of a list that multiplies the odds by e."""
PENALTY = 0.02
"""Loss for each unit of weight, relative to the scale: what does not help goes to zero."""
ROUNDS = 60
FIRST_STEP = 0.05
"""Of a weight, relative to the largest."""
MIN_STEP = 0.001


class Group(NamedTuple):
    """One question: the signals of its messages, and the documents that they belong to."""

    signals: FloatArray
    offsets: FloatArray
    """Added to the weighted sum: what is not fitted, such as the cost."""
    starts: np.ndarray
    """First message of each document, which ranks by its best message."""
    is_evidence: np.ndarray
    """By document."""


def compute_loss(groups: Sequence[Group], weights: FloatArray, scale: float) -> float:
    losses: list[float] = []
    for group in groups:
        scores = np.maximum.reduceat(group.signals @ weights + group.offsets, group.starts).astype(np.float64) / scale
        rest = np.logaddexp.reduce(scores[~group.is_evidence]) if not group.is_evidence.all() else -np.inf
        losses.append(float(np.logaddexp(0, rest - scores[group.is_evidence]).mean()))
    return float(np.mean(losses)) + PENALTY * float(np.abs(weights).sum()) * LIST_SCALE / scale


def fit(groups: Sequence[Group], weights: FloatArray, scale: float) -> FloatArray:
    weights, best = weights.copy(), compute_loss(groups, weights, scale)
    steps = np.full(len(weights), FIRST_STEP * float(np.abs(weights).max()))
    for _ in range(ROUNDS):
        for position in range(len(weights)):
            for step in (steps[position], -steps[position]):
                changed = weights.copy()
                changed[position] += step
                loss = compute_loss(groups, changed, scale)
                if loss < best:
                    weights, best = changed, loss
                    steps[position] *= 1.3
                    break
            else:
                steps[position] *= 0.5
        if steps.max() < MIN_STEP * float(np.abs(weights).max()):
            break
    return weights


def make_list_group(question: HaystackQuestion, embedder: Embedder, names: Sequence[str]) -> Group:
    """The signals that a search over the question's sessions computes."""
    query = parse_query(question.text, at=question.at)
    terms = {term for word in query.words for term in word.terms}
    vector = asyncio.run(embed_query(embedder, query.text, subject=query.subject))
    assert vector is not None
    catalog, starts, postings = MessageCatalog(embedder.name), [0], dict[str, list[tuple[int, bytes]]]()
    for number, session in enumerate(question.sessions):
        messages = [
            IndexedMessage(seq, turn.role, None, session.at + seq * 1_000_000, turn.text, 0)
            for seq, turn in enumerate(session.turns, start=1)
        ]
        extended = extend_segment(None, messages, embedder=embedder)
        change = SegmentChange(number, session.name, 1, encode_columns(extended.segment.columns))
        catalog.apply([change], revision=number)
        starts.append(starts[-1] + len(messages))
        numbered = enumerate(extended.term_counts, start=number * ENTRIES_PER_SEGMENT)
        for (block, term), data in build_postings(numbered).items():
            if term in terms:
                postings.setdefault(term, []).append((block, data))
    [head] = truncate_vectors(vector[np.newaxis], catalog.dimensions)
    # The steps of a search before it scores; no other caller needs the signals.
    words = catalog.find_words(query.words[:MAX_QUERY_WORDS], postings)
    signals, is_hit = ranker.compute_list_signals(catalog, query, words, np.arange(len(catalog)), vector=head)
    columns = [signals.get(name, np.zeros(starts[-1], dtype=np.float32)) * is_hit for name in names]
    offsets = np.zeros(starts[-1], dtype=np.float32)
    is_evidence = np.array([session.is_gold for session in question.sessions])
    return Group(np.stack(columns, axis=1), offsets, np.array(starts[:-1]), is_evidence)


def make_budget_groups(name: str, folder: Path, embedder: Embedder, names: Sequence[str]) -> Iterator[Group]:
    """The signals that recall computes; those of the second pass come from the current weights of the first."""
    for chat in load_chats(name, folder):
        index = merge_segments([build_segment(chat.messages, embedder=embedder)], embedder=embedder.name)
        for question in chat.questions:
            query = parse_query(question.text, at=chat.asked_at, speakers=index.speaker_names)
            vector = asyncio.run(embed_query(embedder, query.topic))
            signals = ranker.compute_budget_signals(index, query, ranker.find_terms(index, query), vector=vector)
            signals |= ranker.compute_feedback_signals(index, ranker.sum_weighted(signals))
            yield Group(
                np.stack([signals[each].astype(np.float32) for each in names], axis=1),
                -np.float32(ranker.COST_WEIGHT) * index.log_tokens,
                np.arange(len(index)),
                np.isin(index.seq, list(question.evidence)),
            )


def print_list_metrics(title: str, questions: Iterable[HaystackQuestion], groups: Iterable[Group], weights: FloatArray):
    metrics: list[Mapping[str, float]] = []
    for question, group in zip(questions, groups, strict=True):
        scores = np.maximum.reduceat(group.signals @ weights, group.starts)
        times = np.array([session.at for session in question.sessions])
        ranked = [question.sessions[place].name for place in np.lexsort((-times, -scores.round(6)))]
        metrics.append(score_ranking(ranked, question.gold))
    shares = ", ".join(f"{name} {format_mean([each[name] for each in metrics])}" for name in metrics[0])
    print(f"{title} (n = {len(metrics)}): {shares}")


def print_weights(names: Sequence[str], weights: FloatArray, scale: Callable[[FloatArray], float]) -> None:
    shown = weights / scale(weights)
    print("weights:", ", ".join(f"{name} {weight:.3f}" for name, weight in zip(names, shown, strict=True)))


def fit_list(folder: Path, embedder: Embedder, *, count: int | None) -> None:
    names = list(ranker.WEIGHTS["list"])
    weights = np.array([ranker.WEIGHTS["list"][name] for name in names], dtype=np.float32)
    halves: dict[bool, tuple[list[HaystackQuestion], list[Group]]] = {True: ([], []), False: ([], [])}
    for question in load_questions(folder, count=count):
        halves[question.is_tuning][0].append(question)
        halves[question.is_tuning][1].append(make_list_group(question, embedder, names))
    fitted = fit(halves[True][1], weights, LIST_SCALE)
    for state, each in (("current", weights), ("fitted", fitted)):
        for title, is_tuning in (("tuning half", True), ("other half", False)):
            print_list_metrics(f"list, {state}, {title}", *halves[is_tuning], each)
    is_bonus = np.isin(names, ranker.LIST_BONUSES)
    print_weights(names, fitted, lambda each: float(each[~is_bonus].sum()))


def fit_budget(folder: Path, embedder: Embedder, *, count: int | None) -> None:
    names = list(ranker.WEIGHTS["budget"])
    weights = np.array([ranker.WEIGHTS["budget"][name] for name in names], dtype=np.float32)
    tuning = [
        group
        for name in ("realtalk", "beam500K")
        for group in islice(make_budget_groups(name, folder, embedder, names), count)
    ]
    other = list(islice(make_budget_groups("locomo", folder, embedder, names), count))
    fitted = fit(tuning, weights, ranker.SCORE_SLOPE)
    for state, each in (("current", weights), ("fitted", fitted)):
        losses = [f"{compute_loss(groups, each, ranker.SCORE_SLOPE):.4f}" for groups in (tuning, other)]
        print(f"budget, {state}: loss of the tuning sets {losses[0]}, of LoCoMo {losses[1]}")
    print_weights(names, fitted, lambda _: 1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longmemeval", type=Path, help="the folder with LongMemEval-S: fits the weights of a list")
    parser.add_argument("--recall", type=Path, help="the folder with the sets of recall: fits those with a budget")
    parser.add_argument("--count", type=int, help="so many questions of each set")
    options = parser.parse_args()
    if options.longmemeval is not None:
        fit_list(options.longmemeval, load_local_embedder(), count=options.count)
    if options.recall is not None:
        fit_budget(options.recall, load_local_embedder(), count=options.count)
