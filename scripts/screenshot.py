"""Make the picture of a report that README.md shows, from the report that `scripts/demo.sh` writes.

Usage: python scripts/screenshot.py [REPORT [PICTURE]]    both have defaults; needs chromium
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "out" / "gpt-oss-20b-decode.html"
PICTURE = ROOT / "scripts" / "report.png"

WIDTH, HEIGHT = 1040, 1530
"""Of the page that is shown, in pixels of a screen; what is further below is left out."""
FINENESS = 1.0
"""Pixels of the picture for each of them."""
COLOURS = 200
MOST_BYTES = 150_000
"""That a page of the repository may ask a reader to fetch for a picture."""


def main(report: Path = REPORT, picture: Path = PICTURE) -> None:
    if not report.is_file():
        sys.exit(f"{report} is not there: run scripts/demo.sh first")
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.png"
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--force-device-scale-factor={FINENESS}",
                f"--screenshot={whole}",
                report.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
        )
        with Image.open(whole) as drawn:
            method = Image.Quantize.MAXCOVERAGE  # few pixels of a colour are seen too
            few = drawn.convert("RGB").quantize(COLOURS, method, dither=Image.Dither.NONE)
            few.save(picture, optimize=True)
    size = picture.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{picture} has {size:,} bytes, more than {MOST_BYTES:,}")
    print(f"{picture}: {size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
