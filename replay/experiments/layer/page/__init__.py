"""Layers as a page: one result, or several side by side."""

from replay.experiments.layer.page.sections import page as page
