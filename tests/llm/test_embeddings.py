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

from quire.errors import MissingExtra, ModelError, ModelInvalid, ModelOverflow, ModelThrottled, ModelUnavailable
from quire.llm import embeddings, endpoint
from quire.llm.embeddings import AsyncEmbedder, Embedder, embedded, local_embedder, unit_rows
from quire.llm.endpoint import EndpointEmbedder, endpoint_embedder
from quire.testing.strategies import texts
from upstream import Answer, Asked, upstream


class TestTheLocalModel:
    def test_rows_have_unit_length_and_the_order_of_the_texts(self):
        embedder = local_embedder()
        rows = embedder.embed(["a lighthouse by the sea", "SELECT * FROM orders", "the beacon on the coast"])
        assert rows.shape == (3, embedder.dimensions) == (3, 256)
        assert rows.dtype == np.float32
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
        assert rows[0] @ rows[2] > rows[0] @ rows[1] + 0.1

    def test_a_text_with_nothing_in_it_is_like_nothing(self):
        rows = local_embedder().embed(["", "word"])
        assert not rows[0].any()
        assert rows[1].any()
        assert local_embedder().embed([]).shape == (0, 256)

    @given(texts())
    def test_any_text_has_one_row_whatever_stands_beside_it(self, text: str):
        alone = local_embedder().embed([text])
        beside = local_embedder().embed(["a much longer text " * 40, text])
        assert np.array_equal(alone[0], beside[1])
        assert np.isfinite(alone).all()
        assert np.linalg.norm(alone) == pytest.approx(1, abs=1e-5) or not alone.any()

    def test_a_huge_text_is_read_from_its_beginning(self):
        beginning = "all about lighthouses " * 1_000
        rows = local_embedder().embed([beginning[: embeddings.LONGEST_LOCAL], beginning + "tax law " * 500_000])
        assert np.array_equal(rows[0], rows[1])

    def test_it_is_loaded_once_even_by_threads(self):
        loaded: list[object] = []
        threads = [threading.Thread(target=lambda: loaded.append(local_embedder())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, loaded))) == 1

    def test_loading_prints_nothing_and_leaves_logging_alone(self):
        code = """
import logging, os, socket
socket.socket.connect = None
from quire.llm.embeddings import local_embedder
root = logging.getLogger()
before = (list(root.handlers), root.level)
assert local_embedder().embed(["one", "two"]).shape == (2, 256)
assert (root.handlers, root.level) == before, (root.handlers, root.level)
assert not any(os.scandir(os.environ["HOME"]))
if os.fork() == 0:
    os._exit(int(not local_embedder().embed(["three"]).any()))
assert os.wait()[1] == 0
"""
        self._runs_silently(code)

    def test_importing_the_module_needs_no_model(self):
        code = "import sys, quire.llm.embeddings, quire.llm.endpoint; assert 'wordllama' not in sys.modules"
        self._runs_silently(f"{code}; assert 'httpx2' not in sys.modules")

    def test_a_missing_package_names_its_extra(self):
        code = """
import sys
sys.modules["wordllama"] = None
from quire.errors import MissingExtra
from quire.llm.embeddings import local_embedder
try:
    local_embedder()
except MissingExtra as error:
    assert "quire[embeddings]" in str(error)
else:
    raise AssertionError
"""
        self._runs_silently(code)

    def _runs_silently(self, code: str) -> None:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-W", "error::UserWarning", "-c", code]
            own = os.environ | {"HOME": home}
            ran = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


async def test_many_texts_are_embedded_in_a_thread_and_few_are_not():
    class Noting:
        name, dimensions = "noting", 1

        def embed(self, texts: Sequence[str]) -> "np.ndarray":
            seen.append(threading.current_thread() is threading.main_thread())
            return np.ones((len(texts), 1), dtype=np.float32)

    seen: list[bool] = []
    await embedded(Noting(), ["a"])
    assert (await embedded(Noting(), ["a"] * embeddings.IN_THREAD)).shape == (embeddings.IN_THREAD, 1)
    assert seen == [True, False]


def test_unit_rows_bear_any_finite_number():
    rows = unit_rows(np.array([[3e300, 4e300], [0, 0], [3e-30, 4e-30]]))
    assert rows.tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 0], [0.6, 0.8]]))


def vectors(*rows: list[float], order: Sequence[int] | None = None) -> Answer:
    async def answer(asked: Asked) -> None:
        data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
        shuffled = [data[place] for place in order] if order else data
        await asked.answer({"object": "list", "data": shuffled, "model": "m"})

    return answer


async def counted(asked: Asked) -> None:
    """Answers with the length of each text, so that rows can be told apart."""
    await vectors(*([float(len(text)), 1.0] for text in asked.body["input"]))(asked)


def says(status: int, body: object, **headers: str) -> Answer:
    async def answer(asked: Asked) -> None:
        await asked.answer(body, status, **headers)

    return answer


async def resets(asked: Asked) -> None:
    asked.reset()


async def hangs(asked: Asked) -> None:
    await asyncio.sleep(30)


def at(url: str, **options: float) -> EndpointEmbedder:
    return EndpointEmbedder(url, "m", "secret", **{"dimensions": 2, "pause": 0.01, **options})  # type: ignore[arg-type]


class TestAnEndpoint:
    async def test_texts_are_sent_and_rows_come_back_in_their_order(self):
        async with upstream(vectors([3, 4], [0, 2], order=[1, 0])) as server:
            embedder = at(server.url)
            rows = await embedder.embed_async(["one", "two"])
        assert rows.dtype == np.float32
        assert rows.tolist() == [pytest.approx([0.6, 0.8]), [0, 1]]
        assert embedder.name == "m-2"
        assert isinstance(embedder, AsyncEmbedder)
        (request,) = server.asked
        assert request.path == "/v1/embeddings"
        assert request.headers["authorization"] == "Bearer secret"
        assert request.body == {"model": "m", "input": ["one", "two"], "encoding_format": "float"}

    async def test_without_a_key_none_is_sent_and_the_whole_address_may_be_given(self):
        async with upstream(counted) as server:
            await EndpointEmbedder(f"{server.url}/embeddings", "m", dimensions=2).embed_async(["one"])
        assert server.asked[0].path == "/v1/embeddings"
        assert "authorization" not in server.asked[0].headers

    async def test_many_texts_go_in_batches_and_empty_ones_not_at_all(self):
        asked = ["", *("x" * (place + 1) for place in range(endpoint.BATCH_TEXTS + 3)), "  \n"]
        async with upstream(counted, counted) as server:
            rows = await at(server.url).embed_async(asked)
        assert [len(body["input"]) for body in server.bodies] == [endpoint.BATCH_TEXTS, 3]
        assert not rows[0].any()
        assert not rows[-1].any()
        assert (rows[1:-1, 0] / rows[1:-1, 1]).tolist() == pytest.approx([float(len(text)) for text in asked[1:-1]])

    async def test_batches_are_bounded_in_characters_and_texts_are_cut(self):
        long = "x" * 3 * endpoint.LONGEST
        async with upstream(*[counted] * 3) as server:
            await at(server.url).embed_async([long] * 60)
        assert [len(body["input"]) for body in server.bodies] == [25, 25, 10]
        assert {len(text) for body in server.bodies for text in body["input"]} == {endpoint.LONGEST}

    async def test_nothing_to_embed_asks_nothing(self):
        async with upstream() as server:
            assert (await at(server.url).embed_async([])).shape == (0, 2)
        assert not server.asked

    async def test_the_size_of_its_vectors_is_asked_for(self):
        async with upstream(vectors([1, 2, 3]), vectors([0, 0, 5])) as server:
            embedder = await endpoint_embedder(server.url, "m", timeout=5.0)
            assert embedder.dimensions == 3
            assert (await embedder.embed_async(["x"])).tolist() == [[0, 0, 1]]

    async def test_a_thread_can_wait_for_it(self):
        async with upstream(counted) as server:
            embedder: Embedder = at(server.url)
            rows = await asyncio.to_thread(embedder.embed, ["abc"])
        assert rows[0, 0] / rows[0, 1] == pytest.approx(3)

    async def test_connections_are_kept_when_it_is_entered(self):
        async with upstream(*[counted] * 4) as server:
            async with at(server.url) as embedder:
                await embedder.embed_async(["a"])
                await embedder.embed_async(["b"])
            await embedder.embed_async(["c"])
        first, second, third = server.asked
        assert first.writer is second.writer
        assert third.writer is not first.writer

    @pytest.mark.parametrize(
        "bad",
        [says(503, {"error": "busy"}), says(429, {"error": "slow down"}), resets, says(200, {"error": "overloaded"})],
    )
    async def test_what_may_pass_is_tried_again(self, bad: Answer):
        async with upstream(bad, bad, counted) as server:
            assert (await at(server.url).embed_async(["a"])).any()
        assert len(server.asked) == 3

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (says(503, {"error": {"message": "busy"}}), ModelUnavailable),
            (says(429, {"error": {"message": "slow down"}}), ModelThrottled),
            (resets, ModelUnavailable),
        ],
    )
    async def test_and_given_up_after_some_attempts(self, answer: Answer, error: type[ModelError]):
        async with upstream(answer, answer) as server:
            with pytest.raises(error):
                await at(server.url, attempts=2).embed_async(["a"])
        assert len(server.asked) == 2

    async def test_it_waits_as_long_as_the_server_asks_but_not_for_minutes(self):
        clock = asyncio.get_running_loop().time
        async with upstream(says(429, {}, retry_after="0.3"), counted) as server:
            began = clock()
            await at(server.url).embed_async(["a"])
            assert clock() - began >= 0.3
        async with upstream(says(429, {}, retry_after="3600")) as server:
            with pytest.raises(ModelThrottled) as caught:
                await at(server.url).embed_async(["a"])
        assert caught.value.retry_after == 3600

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (says(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}}), ModelInvalid),
            (says(404, {"error": {"message": "no such model"}}), ModelInvalid),
            (says(400, {"error": {"message": "maximum context length is 8192 tokens, however"}}), ModelOverflow),
            (vectors([1, 2, 3]), ModelInvalid),
            (vectors([1, 2], [3, 4]), ModelInvalid),
            (vectors(), ModelInvalid),
            (vectors([]), ModelInvalid),
            (vectors([1, float("nan")]), ModelInvalid),
            (says(200, {"data": [{"index": 7, "embedding": [1, 2]}]}), ModelInvalid),
            (says(200, {"data": [{"index": 0, "embedding": "AAAA"}]}), ModelInvalid),
            (says(200, {"data": 3}), ModelInvalid),
            (says(200, ["surprise"]), ModelInvalid),
        ],
    )
    async def test_what_will_not_pass_is_said_at_once(self, answer: Answer, error: type[ModelError]):
        async with upstream(answer) as server:
            with pytest.raises(error, match="m "):
                await at(server.url).embed_async(["a"])
        assert len(server.asked) == 1

    async def test_an_answer_that_is_no_json_is_no_answer(self):
        async def page(asked: Asked) -> None:
            await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>")

        async with upstream(page) as server:
            with pytest.raises(ModelUnavailable, match="no JSON"):
                await at(server.url, attempts=1).embed_async(["a"])

    async def test_a_server_that_hangs_is_given_up(self):
        async with upstream(hangs) as server:
            with pytest.raises(ModelUnavailable):
                await at(server.url, attempts=1, timeout=0.2).embed_async(["a"])

    async def test_a_server_that_trickles_is_given_up(self):
        async def trickle(asked: Asked) -> None:
            await asked.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(100):
                await asked.send(b" ")
                await asyncio.sleep(0.05)

        async with upstream(trickle) as server:
            with pytest.raises(ModelUnavailable, match="in time"):
                await at(server.url, attempts=1, timeout=0.3).embed_async(["a"])

    @pytest.mark.parametrize(("url", "error"), [("http://127.0.0.1:9/v1", ModelUnavailable), ("nowhere", ModelInvalid)])
    async def test_an_address_without_a_server_is_named(self, url: str, error: type[ModelError]):
        with pytest.raises(error, match=url):
            await at(url, attempts=1).embed_async(["a"])

    async def test_its_key_is_in_no_error(self):
        async with upstream(says(401, {"error": {"message": "wrong key"}})) as server:
            with pytest.raises(ModelInvalid) as caught:
                await at(server.url).embed_async(["a"])
        assert "secret" not in str(caught.value)

    async def test_without_the_extra_it_says_which(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "httpx2", None)
        with pytest.raises(MissingExtra, match="llm"):
            await at("http://127.0.0.1:9/v1").embed_async(["a"])
