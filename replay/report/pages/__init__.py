"""A result as a page: one module for each kind of result."""

from replay.report.pages.pages import page as page
