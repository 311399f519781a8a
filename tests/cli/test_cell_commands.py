"""Commands on several cells: upgrade, list."""

import json

import pytest
from cli_fixtures import invoke_cli

from infra.cells import Cells
from quire.db.migrate import SCHEMA_VERSION
from quire.model import Message
from quire.settings.schema import HOME_CELL
from quire.store import SqlStore

pytestmark = pytest.mark.every_postgres


@pytest.fixture
async def owner(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with the owner's URLs, and a tenant with a conversation."""
    others = {name: {"database_url": url} for name, url in cells.owner_urls.items() if name != HOME_CELL}
    monkeypatch.setenv("QUIRE_DATABASE_URL", cells.owner_urls[HOME_CELL])
    monkeypatch.setenv("QUIRE_CELLS", json.dumps(others))
    cells.place("observatory", "b")
    async with SqlStore.open(cells.home, cells=cells.others, tenant="observatory") as store:
        await store.create_conversation("stars")
        await store.append("stars", Message.user("Which are out?"))


@pytest.mark.usefixtures("owner")
def test_a_tenant_is_listed_in_its_cell():
    listed = json.loads(invoke_cli("tenant", "list", "--json").stdout)["tenants"]
    assert [(each["name"], each["cell"], each["conversations"]) for each in listed] == [("observatory", "b", 1)]
    assert "cell" in invoke_cli("tenant", "list").stdout
    verified = invoke_cli("conversation", "verify", "--all", "observatory")
    assert verified.exit_code == 0, verified.output
    assert "1 conversation" in verified.stdout


@pytest.mark.usefixtures("owner")
def test_all_cells_are_upgraded_and_doctor_finds_nothing():
    upgraded = invoke_cli("db", "upgrade", "--json")
    assert upgraded.exit_code == 0, upgraded.output
    assert [each["version"] for each in json.loads(upgraded.stdout)["databases"]] == [SCHEMA_VERSION] * 3
    assert invoke_cli("worker", "--once").exit_code == 0
