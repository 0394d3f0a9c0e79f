"""Memory that a replay may take on this machine: what is free, within the limits of its group.

A container has less than the machine that it runs on: control groups (version 2, and 1 where it is
still mounted) limit a process and its ancestors' groups, and `ulimit -v` limits its addresses. The
least of all that is free counts. It decides whether a replay begins, and never what it gives.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from numbers import Real
from pathlib import Path

from replay.errors import UserError, check_kind

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)(I?)B?", re.ASCII | re.IGNORECASE)

# Where version 1 of control groups keeps what version 2 calls memory.max and memory.current, and
# what of it could be given back: files that were read and are not in use.
_NAMES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def parse_size(text: str) -> int:
    """Read a size such as ``8GB``, ``500 MB``, ``1.5GiB`` or ``4000000000``, as bytes.

    Raises
    ------
    UserError
        If it is none, or nothing.

    Examples
    --------
    >>> parse_size("8GB"), parse_size("0.5 gib"), parse_size("2000")
    (8000000000, 536870912, 2000)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is not None and len(text) < 30:
        number, unit, binary = found.groups()
        power = list(UNITS).index(unit.upper())
        size = int(float(number) * (1024**power if binary else 1000**power))
        if size > 0 and (unit or not binary):
            return size
    message = f"memory {text!r}: expected a size such as 8GB, 500MB or 1.5GiB"
    raise UserError(message)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process could still take; None where nothing says so.

    Parameters
    ----------
    root
        Where the file systems ``proc`` and ``sys/fs/cgroup`` are.
    """
    return min((*_of_machine(root), *_of_groups(root), *_of_addresses(root)), default=None)


def _of_machine(root: Path) -> Iterator[int]:
    """Bytes that programs could take without swapping."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    if found:
        yield int(found[1]) * 1024
        return
    try:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on every system
        return


def _of_groups(root: Path) -> Iterator[int]:
    """Bytes left to the control groups that this process is in, and to those around them."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, base = 2, mounted
        elif "memory" in controllers.split(","):
            version, base = 1, mounted / "memory"
        else:
            continue
        limit, usage, inactive = _NAMES[version]
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            most, used = _text(group / limit).strip(), _text(group / usage).strip()
            if most.isdecimal() and used.isdecimal():
                kept = re.search(rf"^{inactive} (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
                yield max(int(most) - int(used) + (int(kept[1]) if kept else 0), 0)
            if group == base:
                break


def _of_addresses(root: Path) -> Iterator[int]:
    """Bytes left by `ulimit -v`."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = _text(root / "proc/self/statm").partition(" ")[0]
    if limit != resource.RLIM_INFINITY and pages.isdecimal():
        yield max(limit - int(pages) * resource.getpagesize(), 0)


def _text(path: Path) -> str:
    """Text of a file of the kernel; nothing where there is none."""
    try:
        return path.read_text("ascii", errors="replace")
    except OSError:
        return ""


def limit_of(max_memory: float | None) -> float:
    """Bytes that may be taken: those given, else what the machine has left."""
    if max_memory is not None:
        possible = "a number of bytes above 0"
        check_kind("max_memory", max_memory, Real, possible)
        if not max_memory > 0:
            raise UserError(f"max_memory = {max_memory}: expected {possible}")
    free = free_bytes() if max_memory is None else float(max_memory)
    return math.inf if free is None else free
