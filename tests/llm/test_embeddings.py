"""Vectors: the static model as it is, and an endpoint on loopback that also does what endpoints do on bad days."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given

from fake_upstream import Responder, UpstreamRequest, run_fake_upstream
from infra.strategies import texts
from quire.errors import (
    MissingExtra,
    ModelContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelRequestRejected,
    ModelUnavailable,
)
from quire.llm import embedding_endpoint, embeddings
from quire.llm.embedding_endpoint import EndpointEmbedder, connect_endpoint_embedder
from quire.llm.embeddings import AsyncEmbedder, Embedder, embed_texts, load_local_embedder, normalize_rows


class TestLocalEmbedder:
    def test_rows_have_unit_length_and_the_order_of_the_texts(self):
        embedder = load_local_embedder()
        rows = embedder.embed(["a lighthouse by the sea", "SELECT * FROM orders", "the beacon on the coast"])
        assert rows.shape == (3, embedder.dimensions) == (3, 256)
        assert rows.dtype == np.float32
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        assert rows[0] @ rows[2] > rows[0] @ rows[1] + 0.1

    def test_a_text_with_nothing_in_it_is_like_nothing(self):
        rows = load_local_embedder().embed(["", "word"])
        assert not rows[0].any()
        assert rows[1].any()
        assert load_local_embedder().embed([]).shape == (0, 256)

    @given(texts())
    def test_a_row_does_not_depend_on_other_texts_in_the_batch(self, text: str):
        alone = load_local_embedder().embed([text])
        batched = load_local_embedder().embed(["a much longer text " * 40, text])
        assert np.array_equal(alone[0], batched[1])
        assert np.isfinite(alone).all()
        assert np.linalg.norm(alone) == pytest.approx(1, abs=1e-5) or not alone.any()

    def test_a_huge_text_is_read_from_its_beginning(self):
        beginning = "all about lighthouses " * 1_000
        rows = load_local_embedder().embed(
            [beginning[: embeddings.MAX_LOCAL_TEXT_CHARS], beginning + "tax law " * 500_000]
        )
        assert np.array_equal(rows[0], rows[1])

    def test_it_is_loaded_once_even_by_threads(self):
        loaded: list[object] = []
        threads = [threading.Thread(target=lambda: loaded.append(load_local_embedder())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, loaded))) == 1

    def test_loading_prints_nothing_and_leaves_logging_alone(self):
        code = """
import logging, os, socket
socket.socket.connect = None
from quire.llm.embeddings import load_local_embedder
root = logging.getLogger()
before = (list(root.handlers), root.level)
assert load_local_embedder().embed(["one", "two"]).shape == (2, 256)
assert (root.handlers, root.level) == before, (root.handlers, root.level)
assert not any(os.scandir(os.environ["HOME"]))
if os.fork() == 0:
    os._exit(int(not load_local_embedder().embed(["three"]).any()))
assert os.wait()[1] == 0
"""
        self._check_runs_silently(code)

    def test_importing_the_module_needs_no_model(self):
        code = "import sys, quire.llm.embeddings, quire.llm.embedding_endpoint; assert 'wordllama' not in sys.modules"
        self._check_runs_silently(f"{code}; assert 'httpx2' not in sys.modules")

    def test_a_missing_package_names_its_extra(self):
        code = """
import sys
sys.modules["wordllama"] = None
from quire.errors import MissingExtra
from quire.llm.embeddings import load_local_embedder
try:
    load_local_embedder()
except MissingExtra as error:
    assert "quire[embeddings]" in str(error)
else:
    raise AssertionError
"""
        self._check_runs_silently(code)

    def _check_runs_silently(self, code: str) -> None:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-W", "error::UserWarning", "-c", code]
            own = os.environ | {"HOME": home}
            ran = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


async def test_many_texts_are_embedded_in_a_thread_and_few_are_not():
    class ThreadRecordingEmbedder:
        name, dimensions = "recording", 1

        def embed(self, texts: Sequence[str]) -> "np.ndarray":
            on_main_thread.append(threading.current_thread() is threading.main_thread())
            return np.ones((len(texts), 1), dtype=np.float32)

    on_main_thread: list[bool] = []
    await embed_texts(ThreadRecordingEmbedder(), ["a"])
    assert (await embed_texts(ThreadRecordingEmbedder(), ["a"] * embeddings.MIN_THREAD_BATCH_SIZE)).shape == (
        embeddings.MIN_THREAD_BATCH_SIZE,
        1,
    )
    assert on_main_thread == [True, False]


def test_unit_rows_bear_any_finite_number():
    rows = normalize_rows(np.array([[3e300, 4e300], [0, 0], [3e-30, 4e-30]]))
    assert rows.tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0], [0.6, 0.8]]))


def respond_with_vectors(*rows: list[float], order: Sequence[int] | None = None) -> Responder:
    async def answer(request: UpstreamRequest) -> None:
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        shuffled = [data[index] for index in order] if order else data
        await request.respond({"object": "list", "data": shuffled, "model": "m"})

    return answer


async def respond_with_lengths(request: UpstreamRequest) -> None:
    """Responds with the length of each text, so that rows can be distinguished."""
    await respond_with_vectors(*([float(len(text)), 1.0] for text in request.body["input"]))(request)


def respond_with_status(status: int, body: object, **headers: str) -> Responder:
    async def answer(request: UpstreamRequest) -> None:
        await request.respond(body, status, **headers)

    return answer


async def reset_connection(request: UpstreamRequest) -> None:
    request.abort_connection()


async def hang(request: UpstreamRequest) -> None:
    await asyncio.sleep(30)


def make_embedder(url: str, **options: float) -> EndpointEmbedder:
    return EndpointEmbedder(url, "m", "secret", **{"dimensions": 2, "backoff_seconds": 0.01, **options})  # type: ignore[arg-type]


class TestEndpointEmbedder:
    async def test_texts_are_sent_and_rows_come_back_in_their_order(self):
        async with run_fake_upstream(respond_with_vectors([3, 4], [0, 2], order=[1, 0])) as server:
            embedder = make_embedder(server.url)
            rows = await embedder.embed_async(["one", "two"])
        assert rows.dtype == np.float32
        assert rows.tolist() == [pytest.approx([0.6, 0.8]), [0, 1]]
        assert embedder.name == "m-2"
        assert isinstance(embedder, AsyncEmbedder)
        (request,) = server.requests
        assert request.path == "/v1/embeddings"
        assert request.headers["authorization"] == "Bearer secret"
        assert request.body == {"model": "m", "input": ["one", "two"], "encoding_format": "float"}

    async def test_without_a_key_none_is_sent_and_the_whole_address_may_be_given(self):
        async with run_fake_upstream(respond_with_lengths) as server:
            await EndpointEmbedder(f"{server.url}/embeddings", "m", dimensions=2).embed_async(["one"])
        assert server.requests[0].path == "/v1/embeddings"
        assert "authorization" not in server.requests[0].headers

    async def test_many_texts_go_in_batches_and_empty_ones_not_at_all(self):
        sent = ["", *("x" * (index + 1) for index in range(embedding_endpoint.MAX_BATCH_TEXTS + 3)), "  \n"]
        async with run_fake_upstream(respond_with_lengths, respond_with_lengths) as server:
            rows = await make_embedder(server.url).embed_async(sent)
        assert [len(body["input"]) for body in server.bodies] == [embedding_endpoint.MAX_BATCH_TEXTS, 3]
        assert not rows[0].any()
        assert not rows[-1].any()
        assert (rows[1:-1, 0] / rows[1:-1, 1]).tolist() == pytest.approx([float(len(text)) for text in sent[1:-1]])

    async def test_batches_are_bounded_in_characters_and_texts_are_cut(self):
        long = "x" * 3 * embedding_endpoint.MAX_TEXT_CHARS
        async with run_fake_upstream(*[respond_with_lengths] * 3) as server:
            await make_embedder(server.url).embed_async([long] * 60)
        assert [len(body["input"]) for body in server.bodies] == [25, 25, 10]
        assert {len(text) for body in server.bodies for text in body["input"]} == {embedding_endpoint.MAX_TEXT_CHARS}

    async def test_an_empty_list_makes_no_request(self):
        async with run_fake_upstream() as server:
            assert (await make_embedder(server.url).embed_async([])).shape == (0, 2)
        assert not server.requests

    async def test_its_dimensions_are_found_by_a_request(self):
        async with run_fake_upstream(respond_with_vectors([1, 2, 3]), respond_with_vectors([0, 0, 5])) as server:
            embedder = await connect_endpoint_embedder(server.url, "m", timeout=5.0)
            assert embedder.dimensions == 3
            assert (await embedder.embed_async(["x"])).tolist() == [[0, 0, 1]]

    async def test_a_thread_can_wait_for_it(self):
        async with run_fake_upstream(respond_with_lengths) as server:
            embedder: Embedder = make_embedder(server.url)
            rows = await asyncio.to_thread(embedder.embed, ["abc"])
        assert rows[0, 0] / rows[0, 1] == pytest.approx(3)

    async def test_connections_are_reused_when_it_is_entered(self):
        async with run_fake_upstream(*[respond_with_lengths] * 4) as server:
            async with make_embedder(server.url) as embedder:
                await embedder.embed_async(["a"])
                await embedder.embed_async(["b"])
            await embedder.embed_async(["c"])
        first, second, third = server.requests
        assert first.writer is second.writer
        assert third.writer is not first.writer

    @pytest.mark.parametrize(
        "bad",
        [
            respond_with_status(503, {"error": "busy"}),
            respond_with_status(429, {"error": "slow down"}),
            reset_connection,
            respond_with_status(200, {"error": "overloaded"}),
        ],
    )
    async def test_transient_errors_are_retried(self, bad: Responder):
        async with run_fake_upstream(bad, bad, respond_with_lengths) as server:
            assert (await make_embedder(server.url).embed_async(["a"])).any()
        assert len(server.requests) == 3

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (respond_with_status(503, {"error": {"message": "busy"}}), ModelUnavailable),
            (respond_with_status(429, {"error": {"message": "slow down"}}), ModelRateLimited),
            (reset_connection, ModelUnavailable),
        ],
    )
    async def test_it_gives_up_after_its_attempts(self, answer: Responder, error: type[ModelError]):
        async with run_fake_upstream(answer, answer) as server:
            with pytest.raises(error):
                await make_embedder(server.url, attempts=2).embed_async(["a"])
        assert len(server.requests) == 2

    async def test_it_waits_as_long_as_the_server_asks_but_not_for_minutes(self):
        clock = asyncio.get_running_loop().time
        async with run_fake_upstream(respond_with_status(429, {}, retry_after="0.3"), respond_with_lengths) as server:
            started_at = clock()
            await make_embedder(server.url).embed_async(["a"])
            assert clock() - started_at >= 0.3
        async with run_fake_upstream(respond_with_status(429, {}, retry_after="3600")) as server:
            with pytest.raises(ModelRateLimited) as caught:
                await make_embedder(server.url).embed_async(["a"])
        assert caught.value.retry_after == 3600

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (
                respond_with_status(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}}),
                ModelRequestRejected,
            ),
            (respond_with_status(404, {"error": {"message": "no such model"}}), ModelRequestRejected),
            (
                respond_with_status(400, {"error": {"message": "maximum context length is 8192 tokens, however"}}),
                ModelContextOverflow,
            ),
            (respond_with_vectors([1, 2, 3]), ModelRequestRejected),
            (respond_with_vectors([1, 2], [3, 4]), ModelRequestRejected),
            (respond_with_vectors(), ModelRequestRejected),
            (respond_with_vectors([]), ModelRequestRejected),
            (respond_with_vectors([1, float("nan")]), ModelRequestRejected),
            (respond_with_status(200, {"data": [{"index": 7, "embedding": [1, 2]}]}), ModelRequestRejected),
            (respond_with_status(200, {"data": [{"index": 0, "embedding": "AAAA"}]}), ModelRequestRejected),
            (respond_with_status(200, {"data": 3}), ModelRequestRejected),
            (respond_with_status(200, ["surprise"]), ModelRequestRejected),
        ],
    )
    async def test_permanent_errors_are_raised_at_once(self, answer: Responder, error: type[ModelError]):
        async with run_fake_upstream(answer) as server:
            with pytest.raises(error, match="m "):
                await make_embedder(server.url).embed_async(["a"])
        assert len(server.requests) == 1

    async def test_a_response_that_is_not_json_is_an_error(self):
        async def page(request: UpstreamRequest) -> None:
            await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>")

        async with run_fake_upstream(page) as server:
            with pytest.raises(ModelUnavailable, match="not JSON"):
                await make_embedder(server.url, attempts=1).embed_async(["a"])

    async def test_a_server_that_hangs_is_given_up(self):
        async with run_fake_upstream(hang) as server:
            with pytest.raises(ModelUnavailable):
                await make_embedder(server.url, attempts=1, timeout=0.2).embed_async(["a"])

    async def test_a_server_that_trickles_is_given_up(self):
        async def trickle(request: UpstreamRequest) -> None:
            await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(100):
                await request.send(b" ")
                await asyncio.sleep(0.05)

        async with run_fake_upstream(trickle) as server:
            with pytest.raises(ModelUnavailable, match="in time"):
                await make_embedder(server.url, attempts=1, timeout=0.3).embed_async(["a"])

    @pytest.mark.parametrize(
        ("url", "error", "message"),
        [
            ("http://127.0.0.1:9/v1", ModelUnavailable, "Cannot connect to 127.0.0.1:9: .* check the URL for"),
            ("nowhere", ModelRequestRejected, "Cannot call m: .* check the URL for embeddings"),
        ],
    )  # fmt: skip
    async def test_an_address_without_a_server_is_named(self, url: str, error: type[ModelError], message: str):
        with pytest.raises(error, match=message):
            await make_embedder(url, attempts=1).embed_async(["a"])

    async def test_its_key_is_in_no_error(self):
        async with run_fake_upstream(respond_with_status(401, {"error": {"message": "wrong key"}})) as server:
            with pytest.raises(ModelRequestRejected) as caught:
                await make_embedder(server.url).embed_async(["a"])
        assert "secret" not in str(caught.value)

    async def test_without_the_extra_it_says_which(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "httpx2", None)
        with pytest.raises(MissingExtra, match="llm"):
            await make_embedder("http://127.0.0.1:9/v1").embed_async(["a"])
