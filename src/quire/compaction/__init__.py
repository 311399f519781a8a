"""Compaction: older messages folded into a summary, by a model or without one. Nothing here writes to the log."""

from quire.compaction.citations import Checked, checked
from quire.compaction.documents import document_summary
from quire.compaction.extract import extractive_summary
from quire.compaction.summarize import Summary, summarize

__all__ = ["Checked", "Summary", "checked", "document_summary", "extractive_summary", "summarize"]
