"""Files, read whole only where they have an end, and written whole or not at all."""

from tracegen.managed import ManagedFolder as ManagedFolder
from tracegen.output import failures as failures
from tracegen.output import folder as folder
from tracegen.output import write_text as write_text
from tracegen.regular import exists as exists
from tracegen.regular import expanded as expanded
from tracegen.regular import is_file as is_file
from tracegen.regular import is_folder as is_folder
from tracegen.regular import parse_json as parse_json
from tracegen.regular import parse_toml as parse_toml
from tracegen.regular import read_bytes as read_bytes
from tracegen.regular import read_text as read_text
from tracegen.regular import real as real

__all__ = [
    "ManagedFolder",
    "exists",
    "expanded",
    "failures",
    "folder",
    "is_file",
    "is_folder",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_text",
    "real",
    "write_text",
]
