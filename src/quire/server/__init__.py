"""Quire for many users at once: REST, events, and a gateway for OpenAI's clients, over one store.

Nodes keep nothing that another could not find in the store, but for turns under way.
"""
