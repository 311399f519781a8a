"""A job: what kind of work, and for whom. It carries ids and never content, so that losing one loses nothing."""

import json
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

from quire.log import MAIN

Kind = Literal["compact", "shelve", "embed", "index", "describe", "purge"]
"""Background compaction; the recall index; vectors; a vault's index; summaries of its documents; retention."""
KINDS: tuple[Kind, ...] = get_args(Kind)


class Job(NamedTuple):
    kind: Kind
    tenant: str
    conversation: str = ""
    """None for what concerns a vault."""
    branch: int = MAIN

    @property
    def lock(self) -> str:
        """The same for the same work: of each such, one waits and one is done at a time."""
        named = json.dumps([self.tenant, self.conversation, self.branch])
        return f"{self.kind}:{sha256(named.encode()).hexdigest()}"

    def ids(self) -> dict[str, Any]:
        return {"tenant": self.tenant, "conversation": self.conversation, "branch": self.branch}


class Outcome(NamedTuple):
    """So many things were made or removed; what this calls for next."""

    done: int = 0
    then: tuple[Job, ...] = ()


NOTHING = Outcome()
