"""Names of the command groups, which the entry point needs before it imports anything else."""

COMMAND_GROUPS = ("context", "memory", "config", "agent", "conversation", "key", "tenant", "db")
"""Modules with a Typer `app` of several commands; every other command is a module with a function `command`."""
