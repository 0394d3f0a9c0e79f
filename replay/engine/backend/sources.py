"""The text that kernels are compiled from: that of the kernels, and of this folder.

Python reads each file when something in it is needed first, and an editor may write one meanwhile.
The text that is compiled, and the digest that names a compiled kernel, are therefore taken before any of the files
is imported, and a kernel is kept only if the text is still the same once it is compiled (`cache`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

#: Folder of the kernels.
FOLDER = Path(__file__).parents[1] / "kernels"


def _texts() -> dict[Path, bytes]:
    folders = FOLDER, Path(__file__).parent
    return {path: path.read_bytes() for folder in folders for path in sorted(folder.glob("*.py"))}


def _digest_of(texts: dict[Path, bytes]) -> str:
    digest = hashlib.sha256()
    for path, text in texts.items():
        digest.update(f"{path.name} {len(text)} ".encode())
        digest.update(text)
    return digest.hexdigest()


def digest() -> str:
    """Digest of the text as it is on the disk now."""
    return _digest_of(_texts())


#: Text of each file before this process imported the first kernel, and the digest of all.
TEXTS = _texts()
READ = _digest_of(TEXTS)
