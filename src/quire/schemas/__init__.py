"""JSON schemas of the log and of requests, which the REST API returns and the commands print with `--json`."""
