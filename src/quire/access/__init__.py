"""API keys, their rate limits, and what may be spent with them."""
