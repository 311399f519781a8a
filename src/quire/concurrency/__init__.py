"""Worker threads, an event loop in a thread, and cancellation."""
