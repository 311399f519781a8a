"""Headers that every response has, whatever the route and the outcome."""

import httpx2
import pytest
from openapi_helpers import list_operations

OTHER_PATHS = ["/", "/healthz", "/readyz", "/metrics", "/mcp", "/nowhere", "/api/openapi.json", "/v1/nowhere"]


async def test_no_browser_guesses_the_type_of_a_response(client: httpx2.AsyncClient):
    calls = [(each.method, each.path, each.path_parameters) for each in list_operations()]
    for method, path, names in [*calls, *(("get", path, list[str]()) for path in OTHER_PATHS)]:
        if path.endswith("/events"):
            # A stream without an end; its headers are added at the same place.
            continue
        for name in names:
            path = path.replace(f"{{{name}}}", "0" * 64 if name == "digest" else "x")
        answer = await client.request(method, path, content=b"{}" if method != "get" else None)
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], (method, path, answer.status_code)
    too_large = await client.post("/api/keys", content=b"[", headers={"content-length": "999999999999"})
    assert (too_large.status_code, too_large.headers.get("x-content-type-options")) == (413, "nosniff")


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "text/plain; charset=utf-7"])
async def test_an_uploaded_file_is_never_shown_as_a_page(client: httpx2.AsyncClient, media_type: str):
    data = b"<script>alert(1)</script>"
    stored = await client.post("/api/blobs", content=data, headers={"Content-Type": media_type})
    answer = await client.get(f"/api/blobs/{stored.json()['blob']}")
    assert (answer.content, answer.headers["content-disposition"]) == (data, "attachment")
    assert answer.headers["content-security-policy"] == "sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
