"""Facts that a summary leaves out: what is named, what is not, and how much work it may be."""

import pytest

from quire.compaction.line_scorer import MAX_MESSAGE_CHARS
from quire.compaction.lost_facts import MAX_COMPARED_CHARS, MAX_LOST_FACTS, MAX_RESULT_CHARS, find_lost_facts
from quire.model import Message
from quire.model.messages import ToolCallPart


def find_texts(message: Message, summary: str, *kept: str) -> list[str]:
    return [fact.text for fact in find_lost_facts([(7, message)], [summary, *kept]).facts]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("The ledger listens on port 7421.", "The ledger listens on its port."),
        ("The key is in /etc/harbour/quay.toml.", "The key is in a file."),
        ("Deploy it with `make ship-north`.", "It is deployed with make."),
        ("Please ask Marguerite Oyelaran before you merge.", "The user wants a review before the merge."),
        ("The ticket is HARB-5521.", "There is a ticket."),
        ("We decided that tabs separate columns.", "The user spoke about files."),
    ],
)
def test_a_fact_that_the_summary_omits_is_named(text: str, summary: str):
    assert find_texts(Message.user(text), summary) == [text.removesuffix(".")]


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("The ledger listens on port 7421.", "Its address is `localhost:7421`."),
        ("The key is in /etc/harbour/quay.toml.", "It is in quay.toml."),
        ("Deploy it with `make ship-north`.", "Deployed by: make ship-north"),
        ("Please ask Marguerite Oyelaran before you merge.", "Review by marguerite oyelaran."),
        ("We decided that tabs separate columns.", "Decision: columns are separated by tabs, which separate them."),
        ("Thanks, that looks good.", ""),
    ],
)
def test_a_fact_in_other_marks_or_a_shorter_path_is_not_lost(text: str, summary: str):
    assert find_texts(Message.user(text), summary) == []


def test_a_fact_in_a_message_that_the_client_kept_is_not_lost():
    assert find_texts(Message.user("The port is 7421."), "It has a port.", "The port is 7421.") == []


def test_a_short_result_has_facts_and_a_long_one_can_be_read_again():
    assert find_texts(Message.tool("c", "build 88ab12f0 failed"), "It failed.") == ["build 88ab12f0 failed"]
    assert find_texts(Message.tool("c", "build 88ab12f0 failed\n" * MAX_RESULT_CHARS), "It failed.") == []


def test_a_command_is_a_fact_and_instructions_are_none():
    call = ToolCallPart(id="c", name="Bash", arguments='{"command": "psql -f /srv/quay/migrate_0042.sql"}')
    assert len(find_texts(Message(role="assistant", parts=(call,)), "It ran a command.")) == 1
    assert find_texts(Message.system("Working directory: /home/kay/harbour"), "") == []


def test_a_value_is_named_once_with_the_words_of_the_user():
    removed = [(1, Message.assistant("I see 7421 there.")), (2, Message.user("Yes, the port is 7421."))]
    (fact,) = find_lost_facts(removed, [""]).facts
    assert (fact.seq, fact.values) == (2, ("7421",))


def test_facts_are_bounded_and_counted():
    removed = [(seq, Message.user(f"Berth {seq} has the code QX{seq}Z.")) for seq in range(1, 200)]
    lost = find_lost_facts(removed, [""])
    assert (len(lost.facts), lost.total) == (MAX_LOST_FACTS, 199)
    filler = Message.user("a b " * (MAX_MESSAGE_CHARS // 4))
    long = [
        (1, Message.user("Old code QX1Z.")),
        *enumerate([filler] * (MAX_COMPARED_CHARS // MAX_MESSAGE_CHARS + 1), 2),
    ]
    assert find_lost_facts(long, [""]).total == 0


def test_a_file_of_the_same_name_is_another_fact():
    text = "The rates are in /srv/north/rates.toml."
    assert len(find_texts(Message.user(text), "See /srv/south/rates.toml.")) == 1
    assert find_texts(Message.user(text), "See north/rates.toml.") == []
    assert find_texts(Message.user("The rates are in north/rates.toml."), "See /srv/north/rates.toml.") == []


def test_every_line_of_an_earlier_summary_is_a_fact():
    earlier = [(3, "Summary:\n- the winches stay in the northern sheds\n- the port is 7421")]
    lost = find_lost_facts([], ["- the port is 7421"], summaries=earlier)
    assert "the winches stay in the northern sheds" in [fact.text for fact in lost.facts]
    assert not any("port" in fact.text for fact in lost.facts)
