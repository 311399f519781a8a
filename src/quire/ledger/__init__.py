"""The ledger: replays past requests from their manifests, compares two manifests, explains a decision. Its modules
`timeline` and `cache_history` read the requests of a conversation."""

from quire.ledger.manifests import ManifestChange, diff_manifests, find_decision
from quire.ledger.replay import Replay, load_sent_body, replay

__all__ = [
    "ManifestChange",
    "Replay",
    "diff_manifests",
    "find_decision",
    "load_sent_body",
    "replay",
]
