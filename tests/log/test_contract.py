"""Our store passes its own contract, in full, on every backend."""

import pytest

from quire.testing.contract import StoreContract

pytestmark = pytest.mark.every_backend


class TestSqlStore(StoreContract):
    """The `store` fixture is the suite's own."""
