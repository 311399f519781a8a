"""Findings: what stored sessions cost, and where tokens, cache and work were wasted."""
