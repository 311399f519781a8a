"""What is told of jobs: one line of JSON each, with ids, times and the kinds of errors, and never with content.

An error's message may quote what somebody wrote, so that of an error only its kind is told.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from quire.jobs.job import Job

logger = logging.getLogger("quire.jobs")


def tell(event: str, *, job: Job | None = None, error: BaseException | None = None, **known: Any) -> None:
    about: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event}
    if job is not None:
        about |= {"kind": job.kind, **job.ids()}
    if error is not None:
        about["error"] = type(error).__name__
    logger.log(logging.WARNING if error is not None else logging.INFO, json.dumps(about | known))
