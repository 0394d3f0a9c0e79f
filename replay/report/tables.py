"""Units that several tables have."""

MB = 1e6
GB = 1e9
