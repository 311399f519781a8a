"""The settings: one table of names, defaults, limits and purposes, and where their values come from."""

from quire.settings.table import Settings

__all__ = ["Settings"]
