"""`SqlStore` passes the whole store contract on every backend."""

import pytest

from quire.testing.contract import StoreContract

pytestmark = pytest.mark.every_backend


class TestSqlStore(StoreContract):
    """Uses the `store` fixture of the test suite."""
