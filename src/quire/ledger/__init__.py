"""The ledger: what a request was made of, built again, compared, and explained."""

from quire.ledger.diff import Change, diff
from quire.ledger.replay import Replay, replay
from quire.ledger.why import why

__all__ = ["Change", "Replay", "diff", "replay", "why"]
