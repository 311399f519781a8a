"""The OpenAPI document of the application and its operations, for tests generated from it."""

from functools import cache
from typing import Any, NamedTuple, cast

from jsonschema import Draft202012Validator

from quire.server.app import create_app
from quire.server.state import ServerState
from quire.server.upstream_client import UpstreamClient
from quire.settings import Settings
from quire.store import SqlStore

HTTP_METHODS = ("get", "put", "post", "delete", "patch")


class Operation(NamedTuple):
    method: str
    path: str
    spec: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def path_parameters(self) -> list[str]:
        return [each["name"] for each in self.spec.get("parameters", ()) if each["in"] == "path"]

    @property
    def body(self) -> str | None:
        """Schema name of the request body."""
        content = self.spec.get("requestBody", {}).get("content", {})
        return content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2] or None


@cache
def load_document() -> dict[str, Any]:
    """Builds the document; needs no database."""
    store = SqlStore(cast(Any, None))
    return create_app(ServerState(store, Settings(), http_client=UpstreamClient())).openapi()


def assert_conforms(value: object, *, schema: str) -> None:
    """Raises unless the value conforms to the schema."""
    Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": load_document()["components"]}
    ).validate(value)


def list_operations() -> list[Operation]:
    return [
        Operation(method, path, item[method])
        for path, item in load_document()["paths"].items()
        for method in HTTP_METHODS
        if method in item
    ]
