"""What stored rows mean, in terms of the standard library alone.

Short commands read a database without SQLAlchemy and pydantic, whose imports take longer than the reading. The store
decodes by the same functions.
"""

DEFAULT_TENANT = "default"
