"""What people look at: tables, charts and pages as data, and the ways to draw them."""
