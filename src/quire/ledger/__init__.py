"""The ledger: replays past requests from their manifests, compares two manifests, explains a decision, and gives the
timeline of a conversation's requests."""

from quire.ledger.manifests import ManifestChange, diff_manifests, find_decision
from quire.ledger.replay import Replay, load_sent_body, replay
from quire.ledger.timeline import Timeline, load_timeline

__all__ = [
    "ManifestChange",
    "Replay",
    "Timeline",
    "diff_manifests",
    "find_decision",
    "load_sent_body",
    "load_timeline",
    "replay",
]
