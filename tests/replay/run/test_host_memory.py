"""Memory of this machine: what is free, in containers too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from loops import every

from replay.errors import UserError
from replay.experiments.base.host_memory import free_bytes, parse_size

GIB = 2**30


def machine(root: Path, group: str = "0::/a/b\n", available: int = 16, **files: str) -> Path:
    """A machine with 16 GiB, and files of control groups by path with ``__`` for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {GIB // 16} kB\nMemAvailable:   {available * GIB // 1024} kB\n")
    (root / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("memory_", "memory.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_it_is_what_the_machine_has_left(tmp_path: Path) -> None:
    assert free_bytes(machine(tmp_path)) == 16 * GIB
    real = free_bytes()
    assert real is None or real > 10**6


def test_the_group_that_leaves_least_counts_and_files_it_read_are_free(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        a__b__memory_max="max\n",
        a__b__memory_current="5\n",
        a__memory_max=f"{4 * GIB}\n",
        a__memory_current=f"{3 * GIB}\n",
        a__memory_stat=f"anon 1\ninactive_file {2 * GIB}\nactive_file 9\n",
        memory_max=f"{8 * GIB}\n",
        memory_current="0\n",
    )
    assert free_bytes(root) == 3 * GIB


def test_a_container_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", memory_max=f"{2 * GIB}\n", memory_current=f"{GIB // 2}\n")
    assert free_bytes(root) == 3 * GIB // 2


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "9:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
        memory__docker__1__memory_limit_in_bytes=f"{3 * GIB}\n",
        memory__docker__1__memory_usage_in_bytes=f"{2 * GIB}\n",
        memory__docker__1__memory_stat=f"cache 1\ntotal_inactive_file {GIB // 4}\n",
        memory__memory_limit_in_bytes="9223372036854771712\n",
        memory__memory_usage_in_bytes="7\n",
    )
    assert free_bytes(root) == GIB + GIB // 4


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", memory_max="10\n", memory_current="20\n")
    assert free_bytes(root) == 0


def test_the_limit_of_addresses_counts() -> None:
    pytest.importorskip("resource")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from replay.experiments.base.host_memory import free_bytes; print(free_bytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 2**30


@every(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("8g", 8 * 10**9), ("1.5GiB", 3 * 2**29), ("500 MB", 5 * 10**8), ("7", 7)],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@every("text", ["", "GB", "-1GB", "0", "1e9", "inf", "8 QB", "5iB", "9" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected a size such as 8GB"):
        parse_size(text)
