"""Traces that ship with moereplay; `index.toml` lists them, `README.md` says where each is from."""
