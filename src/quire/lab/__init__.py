"""The laboratory: command, routes and JSON of backtests. It hangs on by entry points."""
