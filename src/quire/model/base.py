"""What all values share: the base class, properties that are computed once, and text that can be encoded.

Values are frozen, without unknown fields, with one canonical JSON form. Canonical JSON is compact, in the order of
declaration, without fields that are None. Objects from a provider preserve the order of their keys, because providers
sign and cache bytes. A field added later must default to None, so that the digests of stored values do not change.
"""

from collections.abc import Callable
from typing import Annotated, Any, Generic, Self, TypeVar, cast, overload

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

T = TypeVar("T")

JsonObject = dict[str, JsonValue]
"""A provider's own fields, which Quire passes through without interpreting them."""


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def canonical_json(self) -> str:
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls.model_validate_json(text)


class lazy_property(Generic[T]):  # noqa: N801 (used like `property`)
    """A property that computes its value at the first access and stores it in the instance, without a lock.

    Two threads may both compute it. `functools.cached_property` of Python 3.11 holds one lock for all instances while
    it computes: the event loop would wait for a worker thread that computes the same property of another tenant's
    request.
    """

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


def replace_lone_surrogates(text: str) -> str:
    """Replaces lone surrogates, which remain where text was cut within a character, by U+FFFD; joins pairs.

    UTF-8, and with it every store, provider and tokenizer, rejects lone surrogates.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # The way through UTF-16 joins the two surrogates of a pair into one character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _replace_in_json(value: Any) -> Any:
    match value:
        case str():
            return replace_lone_surrogates(value)
        case list():
            return [_replace_in_json(each) for each in cast(list[Any], value)]
        case dict():
            items = cast(dict[str, Any], value).items()
            return {replace_lone_surrogates(key): _replace_in_json(each) for key, each in items}
        case _:
            return value


EncodableText = Annotated[str, AfterValidator(replace_lone_surrogates)]
"""Text from outside, without lone surrogates."""
ProviderFields = Annotated[JsonObject, AfterValidator(_replace_in_json)]
"""Fields of a provider, without lone surrogates."""
