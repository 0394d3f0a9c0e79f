"""CCFuser."""
