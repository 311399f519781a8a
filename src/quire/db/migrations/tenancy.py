"""PostgreSQL only: hash partitions for tables that grow with conversations, and row-level security by tenant."""

PARTITION_COUNT = 16


def build_partitions(table: str) -> tuple[list[str], list[str]]:
    """The names of a table's partitions, and the statements that create them."""
    names = [f"{table}_{number:02}" for number in range(PARTITION_COUNT)]
    statements = [
        f"CREATE TABLE quire_{name} PARTITION OF quire_{table} "
        f"FOR VALUES WITH (MODULUS {PARTITION_COUNT}, REMAINDER {number})"
        for number, name in enumerate(names)
    ]
    return names, statements


# After a transaction the setting is empty, not unset: without NULLIF, '' would be a valid tenant.
TENANT_ROWS_CONDITION = "tenant = NULLIF(current_setting('quire.tenant', true), '')"


def build_row_security(*tables: str) -> list[str]:
    """Statements that restrict a tenant to its own rows."""
    return [
        statement
        for table in tables
        for statement in (
            f"ALTER TABLE quire_{table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE quire_{table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY own_rows ON quire_{table} "
            f"USING ({TENANT_ROWS_CONDITION}) WITH CHECK ({TENANT_ROWS_CONDITION})",
        )
    ]
