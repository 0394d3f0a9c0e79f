"""Schedules of pipelines: in which order each stage carries out its passes."""
