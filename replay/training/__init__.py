"""Training steps: schedules of pipelines, and steps composed of the times of layers."""
