"""Studies that come with the package: a TOML file each, and beside it the table that it gave."""
