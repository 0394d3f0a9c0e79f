"""What schemes share that run products beside exchanges."""
