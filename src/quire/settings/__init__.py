"""Settings: one schema of names, defaults, limits and descriptions, and the sources of their values."""

from quire.settings.schema import Settings

__all__ = ["Settings"]
