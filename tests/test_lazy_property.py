"""`lazy_property` computes once, and never waits for another thread."""

import threading

from quire.model.base import lazy_property


class Value:
    def __init__(self, release: threading.Event | None = None) -> None:
        self.release, self.started, self.computed = release, threading.Event(), 0

    @lazy_property
    def result(self) -> int:
        """The result."""
        self.started.set()
        assert self.release is None or self.release.wait(10)
        self.computed += 1
        return 7


def test_a_value_is_computed_once():
    value = Value()
    assert (value.result, value.result, value.computed) == (7, 7, 1)
    assert Value.result.__doc__ == "The result."


def test_one_instance_does_not_wait_for_another():
    slow, release = Value(threading.Event()), threading.Event()
    slow.release = release
    thread = threading.Thread(target=lambda: slow.result)
    thread.start()
    assert slow.started.wait(10)
    assert Value().result == 7
    assert slow.computed == 0
    release.set()
    thread.join()
    assert slow.result == 7
