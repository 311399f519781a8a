"""The JSON of rendered messages."""

import json
import sys
import threading
import time
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from quire.view import rendered
from quire.view.rendered import encode_wire_messages

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(JSON_VALUES, st.integers(1, 5))
def test_long_messages_are_encoded_in_pieces_as_otherwise_at_once(value: Any, piece: int):
    with mock.patch.object(rendered, "PIECE_CHARS", piece):
        message: dict[str, Any] = {"role": "user", "content": value}
        at_once = json.dumps([message], ensure_ascii=False, separators=(",", ":")).encode()
        assert encode_wire_messages([message]) == at_once


def test_other_threads_run_while_a_long_message_is_encoded():
    message: dict[str, Any] = {"role": "user", "content": '"\n' * 15_000_000}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    try:
        work = threading.Thread(target=lambda: encode_wire_messages([message]))
        started = previous = time.perf_counter()
        work.start()
        longest = 0.0
        while work.is_alive():
            current = time.perf_counter()
            longest, previous = max(longest, current - previous), current
    finally:
        sys.setswitchinterval(interval)
    assert longest < (time.perf_counter() - started) / 2
