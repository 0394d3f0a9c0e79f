"""Results as tables of text; nothing here runs a replay."""
