"""Lost facts in texts from which the rules were not made."""

import re

from unseen_facts import SESSIONS

from quire.compaction.lost_facts import find_lost_facts
from quire.model import Message

FACTS = 103
MIN_FOUND, MAX_FALSE = 93, 5

_MARKED = re.compile(r"⟦(.*?)⟧")


def test_facts_in_unseen_wording_are_named():
    facts: list[str] = []
    missed: list[str] = []
    false: list[str] = []
    for session in SESSIONS:
        marked: list[str] = _MARKED.findall(session.said)
        removed: list[tuple[int, Message]] = []
        for seq, line in enumerate(_MARKED.sub(r"\1", session.said).splitlines(), 1):
            text = line.removeprefix("> ")
            removed.append((seq, Message.user(text) if text == line else Message.assistant(text)))
        named = [fact.text for fact in find_lost_facts(removed, [session.summary]).facts]
        facts += marked
        missed += [each for each in marked if not any(each in text for text in named)]
        false += [text for text in named if not any(each in text for each in marked)]
    assert len(facts) == FACTS
    assert FACTS - len(missed) >= MIN_FOUND, missed
    assert len(false) <= MAX_FALSE, false
