"""Files that appear complete or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tracegen.errors import UserError


@contextlib.contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """Give the path of a draft that takes the place of a file once it is written.

    Parameters
    ----------
    target
        The file; replaced if it exists.

    Yields
    ------
    A path beside the target, so that the final renaming cannot cross file systems. Nothing is
    there yet. If the caller fails, the draft is removed and the target stays as it was.

    Raises
    ------
    UserError
        If the draft cannot be written or renamed.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield draft
        draft.replace(target)
    except OSError as error:
        msg = f"{target}: cannot be written ({error.strerror or error})"
        raise UserError(msg) from error
    finally:
        draft.unlink(missing_ok=True)
