"""The text that kernels are compiled from: that of the kernels, and of this folder.

Python reads each file when something in it is needed first, and an editor may write one meanwhile.
The digest that names a compiled kernel is therefore taken before any of them is read, and a kernel
is kept only if the text is still the same once it is compiled (`cache`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

#: Folder of the kernels.
FOLDER = Path(__file__).parents[1] / "kernels"


def digest() -> str:
    """Digest of the text as it is on the disk now."""
    digest = hashlib.sha256()
    for folder in (FOLDER, Path(__file__).parent):
        for path in sorted(folder.glob("*.py")):
            text = path.read_bytes()
            digest.update(f"{path.name} {len(text)} ".encode())
            digest.update(text)
    return digest.hexdigest()


#: Digest of the text before this process read the first kernel.
READ = digest()
