"""Addresses of catalogues and files: folders, and URLs of the protocols that are followed."""

from urllib.parse import quote, urlsplit, urlunsplit

from tracegen.shared import regular
from tracegen.shared.errors import UserError

REMOTE = ("https", "http", "s3", "gs", "gcs", "abfs", "az", "hf", "memory")
"""Protocols by which a catalogue or a trace may be reached; local files are given as paths."""


def is_url(text: str) -> bool:
    """Tell whether a text names something remote rather than a path.

    Parameters
    ----------
    text
        As a user or a catalogue wrote it.
    """
    return "://" in text or "::" in text


def check_url(url: str) -> str:
    """Refuse URLs of other protocols, and chains of file systems.

    Parameters
    ----------
    url
        Of a catalogue or a trace.

    Returns
    -------
    The same URL.

    Raises
    ------
    UserError
        If it is not one that is followed.
    """
    # fsspec would follow "simplecache::file:///..." to local files.
    protocol = url.partition("://")[0].lower()
    if protocol not in REMOTE or "::" in url or not url.isprintable() or " " in url:
        msg = f"{url!r}: not a URL that is followed; possible: {', '.join(REMOTE)}"
        raise UserError(msg)
    return url


def full(where: str) -> str:
    """A catalogue's folder with all that it is in, or its URL.

    Parameters
    ----------
    where
        As a user wrote it.
    """
    return where if is_url(where) else str(regular.expand_home(where).absolute())


def join(base: str, file: str) -> str:
    """URL of a file below another URL; a query (such as a signature) is kept.

    Parameters
    ----------
    base
        URL of a folder.
    file
        Relative path, checked.

    Examples
    --------
    >>> join("https://example.org/traces/", "a.h5")
    'https://example.org/traces/a.h5'
    """
    parts = urlsplit(base)
    path = f"{parts.path.rstrip('/')}/{quote(file)}"
    return urlunsplit(parts._replace(path=path))
