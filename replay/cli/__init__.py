"""Every command of `replay`, put together with those of the other packages."""
