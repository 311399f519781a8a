"""`Finding`: one line of `quire doctor`."""

from dataclasses import dataclass
from typing import Literal

FindingStatus = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found. A note needs no action; a problem names its cause and the remedy."""

    check: str
    status: FindingStatus
    detail: str
    remedy: str = ""


def report_ok(check: str, detail: str) -> Finding:
    return Finding(check=check, status="ok", detail=detail)


def report_note(check: str, detail: str, remedy: str = "") -> Finding:
    return Finding(check=check, status="note", detail=detail, remedy=remedy)


def report_problem(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check=check, status="problem", detail=detail, remedy=remedy)
