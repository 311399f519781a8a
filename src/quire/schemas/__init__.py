"""JSON schemas of the log and of requests, which the REST API returns and the commands print with `--json`."""

from pydantic import BaseModel, ConfigDict


class JsonModel(BaseModel):
    """A document whose fields are always present in its JSON, also those that are null or have defaults.

    It is read from any value with attributes of these names. Values that are JSON as they are (frozen dataclasses) are
    fields of it without a class of their own: the docstrings of their attributes are the descriptions.
    """

    model_config = ConfigDict(
        frozen=True,
        from_attributes=True,
        validate_by_name=True,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )
