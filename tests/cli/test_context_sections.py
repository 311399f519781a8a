"""`quire context show`: counts by include mode, and sections that fold."""

from typing import get_args

from cli_fixtures import CliHome, invoke_cli, run_json
from test_output import make_manifest

from quire.cli.context_window import (
    format_headline,
    format_item_counts,
    group_sections,
    select_section,
)
from quire.model import Decision
from quire.model.manifest import DecisionKind, DecisionReason
from quire.model.policy import SLOTS


def make_items(kind: DecisionKind, **counts: int) -> list[Decision]:
    return [
        Decision(slot="system", kind=kind, included=True, reason=reason, name=f"{kind} {reason} {number}")  # type: ignore[arg-type]
        for reason, count in counts.items()
        for number in range(count)
    ]


def test_items_are_counted_by_include_mode():
    manifest = make_manifest(window=1_000, used=[0] * 8, reserved=100)
    assert format_item_counts(manifest) is None
    decisions = [
        *make_items("instructions", instructions=1),
        *make_items("rule", agent=3, always=2),
        *make_items("reference", always=1),
        *make_items("tool", manual=3),
        Decision(slot="system", kind="rule", included=False, reason="not_added", name="other"),
    ]
    manifest = manifest.model_copy(update={"decisions": tuple(decisions)})
    assert format_item_counts(manifest) == "5 rules (2 always, 3 agent), 1 reference (always), 3 tools (all manual)"
    carried = manifest.model_copy(update={"decisions": tuple(make_items("tool", agent=1, carried=1))})
    assert format_item_counts(carried) == "2 tools (all agent)"


def test_the_headline_says_how_many_tokens_are_documents():
    manifest = make_manifest(window=1_000, used=[0] * 8, reserved=100)
    assert "documents" not in format_headline(manifest)
    rows = (
        Decision(slot="newest", kind="document", included=True, reason="referenced", tokens=30),
        Decision(slot="newest", kind="document", included=False, reason="listed", tokens=99),
        Decision(slot="recall", kind="document", included=True, reason="recalled", tokens=50),
        Decision(slot="messages", kind="message", included=True, reason="recent", tokens=90, document_tokens=7),
    )
    manifest = manifest.model_copy(update={"decisions": rows})
    assert "37 of them in documents that messages reference" in format_headline(manifest)


def test_every_decision_has_a_section():
    for kind in get_args(DecisionKind):
        for reason in get_args(DecisionReason):
            for slot in SLOTS:
                decision = Decision(slot=slot, kind=kind, included=True, reason=reason, tokens=3)
                [group] = group_sections([decision])
                assert group.section == select_section(decision)
                assert group.tokens == 3


def test_sections_are_folded_until_they_are_unfolded(home: CliHome):
    folded = invoke_cli("context", "show").stdout
    assert "1 rule (always)" in folded
    assert "▸ Instructions and rules (2): 24 tokens" in folded
    assert "plain" not in folded
    everything = invoke_cli("context", "show", "--all").stdout
    assert "▾ Instructions and rules (2)" in everything
    assert "plain" in everything
    assert "▸" not in everything
    assert everything.count("▾") == folded.count("▸")


def test_the_counts_are_in_the_json(home: CliHome):
    none = {"always": 0, "manual": 0, "agent": 0}
    document = run_json("context", "show")
    assert document["item_counts"]["rule"] == {**none, "always": 1}
    assert document["item_counts"]["reference"] == {**none, "manual": 1}


def test_why_answers_for_an_item_that_was_not_added_or_was_removed(home: CliHome):
    run_json("context", "items", "--remove", "plain")
    assert run_json("context", "why", "plain")["decision"]["reason"] == "removed"
    run_json("context", "items", "--remove", "harbour")
    assert "removed from the session" in invoke_cli("context", "why", "harbour").stdout
    home.agent.write_text(home.agent.read_text() + '\n[rules.brief]\ntext = "Be brief."\ninclude = "manual"\n')
    output = invoke_cli("context", "why", "brief").stdout
    assert "brief: not included (not added: it is not in the session)" in " ".join(output.split())
