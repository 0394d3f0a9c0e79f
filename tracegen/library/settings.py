"""Places to look for traces and to keep them: from the environment, then a configuration file."""

import functools
import os
import sys
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.shared.strict import mistake_in

ENV_CATALOGUES = "MOEREPLAY_CATALOGUES"
"""Catalogues to search, separated by commas."""
ENV_CACHE = "MOEREPLAY_CACHE"
"""Folder of downloaded traces."""
ENV_OFFLINE = "MOEREPLAY_OFFLINE"
"""1, true or yes: never open a connection."""
ENV_CONFIG = "MOEREPLAY_CONFIG"
"""Configuration file to read instead of the one in the user's configuration folder."""


class FileSettings(BaseModel):
    """The configuration file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    catalogues: list[str] = []
    """Folders and URLs of catalogues, in the order in which they are searched."""
    cache: str = ""
    """Folder of downloaded traces; empty for the platform's own."""
    offline: bool = False
    """Whether connections are forbidden."""


class Settings:
    """Settings of the environment and the configuration file, each read when it is first asked for.

    The path of a file needs none of them, and a name of the package neither: a configuration file
    that is missing or malformed stops only what depends on it.

    Parameters
    ----------
    offline
        Overrides environment and file; None leaves it to them.

    Raises
    ------
    UserError
        From the attributes, if the configuration file is needed, and malformed or named but absent.
    """

    def __init__(self, offline: bool | None = None) -> None:
        self._offline = offline

    @functools.cached_property
    def _file(self) -> FileSettings:
        return _read_file()

    @functools.cached_property
    def catalogues(self) -> tuple[str, ...]:
        """Folders and URLs of catalogues, in the order in which they are searched."""
        listed = os.environ.get(ENV_CATALOGUES)
        given = self._file.catalogues if listed is None else listed.split(",")
        return tuple(where.strip() for where in given if where.strip())

    @functools.cached_property
    def cache(self) -> Path:
        """Folder of downloaded traces; made when first needed."""
        given = os.environ.get(ENV_CACHE) or self._file.cache
        try:
            return regular.expand_home(given) if given else user_folder("cache")
        except UserError as error:
            msg = f"no folder for downloaded traces: {error}; {ENV_CACHE} names one"
            raise UserError(msg) from None

    @property
    def present_cache(self) -> Path | None:
        """The same folder, to look into; None for a user without a home, who cannot have fetched anything."""
        try:
            return self.cache
        except UserError:
            if os.environ.get(ENV_CACHE) or self._file.cache:
                raise
            return None

    @functools.cached_property
    def offline(self) -> bool:
        """Tell whether connections are forbidden."""
        if self._offline is not None:
            return self._offline
        said = os.environ.get(ENV_OFFLINE)
        return self._file.offline if said is None else said.lower() in ("1", "true", "yes", "on")


def user_folder(purpose: str) -> Path:
    """Folder of this user for files of one purpose, as the platform has it.

    Parameters
    ----------
    purpose
        ``"cache"`` or ``"config"``.

    Returns
    -------
    Following the XDG base directories on Linux and other Unix, ``~/Library`` on macOS and
    ``%LOCALAPPDATA%`` on Windows.
    """
    given = os.environ.get(f"XDG_{purpose.upper()}_HOME", "")
    # The specification says that relative paths are to be ignored.
    if sys.platform not in ("darwin", "win32") and Path(given).is_absolute():
        return Path(given) / "moereplay"
    home = regular.expand_home("~")
    if sys.platform == "darwin":
        part = "Caches" if purpose == "cache" else "Application Support"
        return home / "Library" / part / "moereplay"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(home / "AppData" / "Local")
        return Path(base) / "moereplay" / purpose.capitalize()
    return home / f".{purpose}" / "moereplay"


def _read_file() -> FileSettings:
    """The configuration file, or an empty one."""
    named = os.environ.get(ENV_CONFIG)
    try:
        path = regular.expand_home(named) if named else user_folder("config") / "config.toml"
    except UserError:
        if named:
            raise
        return FileSettings()  # who has no home has no settings there
    try:
        return FileSettings.model_validate(regular.parse_toml(regular.read_text(path)))
    except FileNotFoundError:
        if named:
            msg = f"{path}: no such file ({ENV_CONFIG})"
            raise UserError(msg) from None
        return FileSettings()
    except ValidationError as error:
        key, problem = mistake_in(error)
        msg = f"{path}: {key}: {problem}; possible keys: {', '.join(FileSettings.model_fields)}"
        raise UserError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"{path}: {error}"
        raise UserError(msg) from error
