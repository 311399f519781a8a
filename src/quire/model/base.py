"""Base class of all values: frozen, without unknown fields, with one canonical JSON form.

Canonical JSON is compact, in the order of declaration, without fields that are None. Objects from a provider preserve
the order of their keys, because providers sign and cache bytes. A field added later must default to None, so that the
digests of stored values do not change.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

JsonObject = dict[str, JsonValue]
"""A provider's own fields, which Quire passes through without interpreting them."""


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def canonical_json(self) -> str:
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls.model_validate_json(text)
