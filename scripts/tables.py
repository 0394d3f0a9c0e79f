"""Writes the tables of schemes in the documents anew, from the registry.

Usage: python scripts/tables.py
"""

from __future__ import annotations

from pathlib import Path

from replay.report.scheme_tables import with_tables

ROOT = Path(__file__).parents[1]


def main() -> None:
    pages = (ROOT / "scripts" / "site" / "pages").glob("*.md")
    for path in [*sorted(pages), *sorted((ROOT / "replay").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if with_tables(text) != text:
            path.write_text(with_tables(text), encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
