"""Test helpers for Quire and its backends: store contract, Hypothesis strategies, scripted model."""
