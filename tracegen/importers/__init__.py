"""Traces from the routing dumps of other tools."""
