"""Routing traces in memory: tables, invariants, origin and identity."""
