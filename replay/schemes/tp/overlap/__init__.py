"""Base of schemes that run products beside exchanges."""
