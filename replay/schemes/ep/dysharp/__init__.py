"""DySHARP and its variants."""
