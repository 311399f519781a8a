"""Quire's HTTP server for many users: REST API, SSE events, and a gateway for OpenAI clients, over one store.

Nodes are stateless except for running turns: everything else is in the store, where any node can read it.
"""
