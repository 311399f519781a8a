"""Static files of the page, as served. Needs no browser."""

import gzip
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from quire.server.page import CONTENT_SECURITY_POLICY, IMMUTABLE_CACHE_CONTROL, STATIC_DIR, add_page

MAX_GZIP_BYTES = 150_000
"""Maximum size of the JavaScript that every visit loads, gzipped."""
MAX_LAZY_GZIP_BYTES = 80_000
"""Maximum size of each part that is loaded when it is needed, gzipped."""


@pytest.fixture
def static_dir(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Quire</title>", encoding="utf-8")
    (tmp_path / "favicon.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "assets" / "index-1a2b.js").write_text("1", encoding="utf-8")
    return tmp_path


def make_client(static_dir: Path) -> httpx2.AsyncClient:
    app = FastAPI()
    add_page(app, static_dir=static_dir)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://quire")


async def test_the_index_is_revalidated_and_its_assets_are_cached_for_ever(static_dir: Path) -> None:
    async with make_client(static_dir) as client:
        index, script = await client.get("/"), await client.get("/assets/index-1a2b.js")
    assert index.status_code == script.status_code == 200
    assert index.headers["cache-control"] == "no-cache"
    assert script.headers["cache-control"] == IMMUTABLE_CACHE_CONTROL
    assert script.headers["content-type"].startswith("text/javascript")


async def test_everything_comes_under_the_policy(static_dir: Path) -> None:
    async with make_client(static_dir) as client:
        for path in ("/", "/favicon.svg", "/assets/index-1a2b.js"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY, path
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["referrer-policy"] == "no-referrer", path


def test_the_policy_lets_in_nothing_from_elsewhere() -> None:
    directives = dict(each.split(" ", 1) for each in CONTENT_SECURITY_POLICY.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize(
    "path", ["/assets/../index.html", "/assets/..%2findex.html", "/assets/%2e%2e/index.html", "/x"]
)
async def test_nothing_outside_the_files_is_served(static_dir: Path, path: str) -> None:
    (static_dir.parent / "secret.txt").write_text("secret", encoding="utf-8")
    async with make_client(static_dir) as client:
        answer = await client.get(path)
    assert answer.status_code == 404 or answer.url.path == "/index.html"
    assert "secret" not in answer.text


async def test_a_page_that_was_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    async with make_client(tmp_path) as client:
        answer = await client.get("/")
        assert (await client.get("/assets/x.js")).status_code == 404
    assert answer.status_code == 404
    assert "<code>just web</code>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.skipif(not (STATIC_DIR / "index.html").is_file(), reason="THE PAGE IS NOT BUILT (just web)")
class TestBuiltPage:
    def test_the_script_is_small_and_heavy_parts_are_loaded_when_needed(self) -> None:
        index = (STATIC_DIR / "index.html").read_text(encoding="utf-8")
        sizes = {file.name: len(gzip.compress(file.read_bytes())) for file in STATIC_DIR.glob("assets/*.js")}
        initial = {name for name in sizes if name in index}
        assert 0 < sum(sizes[name] for name in initial) < MAX_GZIP_BYTES
        lazy = {name.partition("-")[0] for name in sizes.keys() - initial}
        assert lazy == {"highlighting", "maths", "preview"}
        assert all(sizes[name] < MAX_LAZY_GZIP_BYTES for name in sizes.keys() - initial)

    def test_nothing_in_it_loads_from_elsewhere(self) -> None:
        index = (STATIC_DIR / "index.html").read_text(encoding="utf-8")
        assert "<script>" not in index
        assert "http" not in index
        for file in STATIC_DIR.glob("assets/*.css"):
            text = file.read_text(encoding="utf-8")
            assert "@import" not in text
            assert "url(" not in text
