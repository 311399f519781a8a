"""What all values share: they are frozen, know their fields exactly, and have one JSON form.

The JSON form is compact, in the order of declaration, without fields that are None. Objects that came from a provider
keep the order of their keys, because providers sign and cache bytes. A field added later must default to None, so that
what was stored before keeps its digest.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

Foreign = dict[str, JsonValue]
"""A provider's own fields, which Quire carries and does not read."""


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def canonical(self) -> str:
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls.model_validate_json(text)
