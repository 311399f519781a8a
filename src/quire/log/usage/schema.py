"""Tables of the usage roll-up. Derived data: `quire stats --recount` checks it against the log.

A conversation's contributions are stored apart from the tenant's totals, so that a purge can subtract exactly what the
conversation added.
"""

from sqlalchemy import BigInteger, Column, Integer, Table, Text

from quire.log.schema import metadata
from quire.log.usage.contribution import UsageCounts

uncounted_branches = Table(
    "quire_uncounted_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
)
"""Branches with entries that are not in the roll-up yet, and the last of them: an outbox of every append."""

counted_branches = Table(
    "quire_counted_branches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
)
"""High-water mark of each branch: the roll-up has its own entries up to this one."""

usage_contributions = Table(
    "quire_usage_contributions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("dimension", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in UsageCounts._fields),
)
"""What each conversation adds to the totals."""

usage_totals = Table(
    "quire_usage_totals",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("dimension", Text, primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in UsageCounts._fields),
)
"""The sum of the contributions of all conversations, by dimension, day (number since 1970, UTC) and name."""

usage_turns = Table(
    "quire_usage_turns",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("conversation", Text, primary_key=True),
    Column("branch", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("day", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)
"""Turns with a cost or reported tokens, by the reply that ends each; an index orders them by cost."""

document_pairs = Table(
    "quire_document_pairs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("first", Text, primary_key=True),
    Column("second", Text, primary_key=True),
    Column("conversations", BigInteger, nullable=False),
)
"""Documents that are used together, and in how many conversations; `first` sorts before `second`."""
