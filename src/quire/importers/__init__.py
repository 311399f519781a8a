"""Readers of conversations that other programs stored."""
