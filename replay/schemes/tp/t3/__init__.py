"""T3: stores that are tracked trigger copies by engines, and sums are made in memory."""
