"""Files, read whole only where they have an end, and written whole or not at all."""

from tracegen.shared.managed_folder import ManagedFolder as ManagedFolder
from tracegen.shared.output import failures as failures
from tracegen.shared.output import folder as folder
from tracegen.shared.output import write_text as write_text
from tracegen.shared.regular import exists as exists
from tracegen.shared.regular import expand_home as expand_home
from tracegen.shared.regular import is_file as is_file
from tracegen.shared.regular import is_folder as is_folder
from tracegen.shared.regular import parse_json as parse_json
from tracegen.shared.regular import parse_toml as parse_toml
from tracegen.shared.regular import read_bytes as read_bytes
from tracegen.shared.regular import read_input as read_input
from tracegen.shared.regular import read_text as read_text
from tracegen.shared.regular import real as real

__all__ = [
    "ManagedFolder",
    "exists",
    "expand_home",
    "failures",
    "folder",
    "is_file",
    "is_folder",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_input",
    "read_text",
    "real",
    "write_text",
]
