"""Display: tables, charts and pages as data, and the ways to draw them."""
