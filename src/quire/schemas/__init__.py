"""JSON schemas of the log and of requests, which the REST API returns and the commands print with `--json`."""

from pydantic import BaseModel, ConfigDict


class JsonModel(BaseModel):
    """A document whose fields are always present in its JSON, also those that are null or have defaults."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)
