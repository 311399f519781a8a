"""`lazy_property`: a property that is computed once, without a lock.

`functools.cached_property` of Python 3.11 holds one lock for all instances while it computes: the event loop would wait
for a worker thread that computes the same property of another tenant's request.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class lazy_property(Generic[T]):  # noqa: N801 (used like `property`)
    """Computes its value at the first access and stores it in the instance. Two threads may both compute it."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        # The stored value is found before this descriptor, which has no `__set__`.
        value = instance.__dict__[self._function.__name__] = self._function(instance)
        return value
