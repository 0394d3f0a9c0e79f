"""Descriptions of machines, one TOML file each; see :mod:`hwmodel.catalog`."""
