"""What tables need on PostgreSQL: partitions, where they grow with conversations, and rows that only a tenant sees."""

PARTITIONS = 16


def partitions_of(table: str) -> tuple[list[str], list[str]]:
    """The names of a table's partitions, and the statements that make them."""
    names = [f"{table}_{number:02}" for number in range(PARTITIONS)]
    statements = [
        f"CREATE TABLE quire_{name} PARTITION OF quire_{table} "
        f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number})"
        for number, name in enumerate(names)
    ]
    return names, statements


# After a transaction the setting is empty, not unset: without the NULLIF, '' would be a tenant.
OWN_ROWS = "tenant = NULLIF(current_setting('quire.tenant', true), '')"


def row_security(*tables: str) -> list[str]:
    """Lets a tenant read and write its own rows alone."""
    return [
        statement
        for table in tables
        for statement in (
            f"ALTER TABLE quire_{table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE quire_{table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_rows ON quire_{table} USING ({OWN_ROWS}) WITH CHECK ({OWN_ROWS})",
        )
    ]
