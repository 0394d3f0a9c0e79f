"""Shapes of dense transformer layers as TOML, every value with its source."""
