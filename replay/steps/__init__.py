"""From layers to a step: parallel plans, memory per GPU, and times of the parts of a step."""
