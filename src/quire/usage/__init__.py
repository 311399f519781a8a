"""The usage roll-up: statistics of replies, requests and compactions, maintained incrementally from the log."""
