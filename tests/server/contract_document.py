"""The OpenAPI document as the application gives it, and its operations, for the tests that are made from it."""

from functools import cache
from typing import Any, NamedTuple, cast

import httpx
from jsonschema import Draft202012Validator

from quire.log import SqlStore
from quire.server.app import create_app
from quire.server.serving import Serving
from quire.settings import Settings

METHODS = ("get", "put", "post", "delete", "patch")


class Operation(NamedTuple):
    method: str
    path: str
    about: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"

    @property
    def path_parameters(self) -> list[str]:
        return [each["name"] for each in self.about.get("parameters", ()) if each["in"] == "path"]

    @property
    def body(self) -> str | None:
        """The name of its body's model."""
        content = self.about.get("requestBody", {}).get("content", {})
        return content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2] or None


@cache
def document() -> dict[str, Any]:
    """No database is needed to ask for it."""
    store = SqlStore(cast(Any, None))
    return create_app(Serving(store, Settings(), client=cast(httpx.AsyncClient, None))).openapi()


def conforms(value: object, *, to: str) -> None:
    """Raises unless a value is as the contract has it."""
    Draft202012Validator({"$ref": f"#/components/schemas/{to}", "components": document()["components"]}).validate(value)


def operations() -> list[Operation]:
    return [
        Operation(method, path, item[method])
        for path, item in document()["paths"].items()
        for method in METHODS
        if method in item
    ]
