"""Connections, dialects and migrations of SQLite and PostgreSQL."""
