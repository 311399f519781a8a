"""Histories that a client holds: recognise the conversation, prepare the request, record the reply.

The gateway and the adapters of other frameworks are built on it. It knows neither HTTP nor a framework.
"""
