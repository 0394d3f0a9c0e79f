"""Results as tables, charts and pages; nothing here runs a replay."""
