"""Thousands of damaged files: each ends in a trace or in one line, soon and in little memory.

A child process does the reading, so that a crash of the HDF5 library, a hang or a runaway
allocation is seen from outside. Every file has its own alarm, whose signal kills the child (a
hang within HDF5 would not notice an exception); its memory in use is looked at after every file.
"""

import contextlib
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegen

SECONDS_PER_FILE = 10
"""Patience with one file; a sound one takes milliseconds."""
GROWTH_BYTES = 96 * 2**20
"""Memory in use beyond what reading a sound file took that a damaged one may cost: a chunk of
the largest allowed size (64 MiB), and room for what decoding takes."""
ADDRESS_BYTES = 2 * 2**30
"""Address space of the child; an allocation beyond it fails, whatever of it would be used."""

CHILD = """
    import json, resource, signal, sys, tracegen
    from pathlib import Path
    from tracegen import library

    def use(path):
        with tracegen.open(path) as file:
            file.load_per_expert
        tracegen.load(path)
        library.verify(path)

    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    use(Path(sys.argv[1]))
    outcome = "ready"
    while True:
        # Not getrusage: its peak is inherited from the process that started this one.
        status = Path("/proc/self/status").read_text()
        print(outcome, int(status.partition("VmHWM:")[2].split()[0]) * 1024, flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        path = Path(line.strip())
        signal.alarm(int(sys.argv[3]))
        try:
            use(path)
            outcome = "read"
        except tracegen.UserError as error:
            assert len(str(error).splitlines()) == 1, str(error)
            outcome = "refused"
        signal.alarm(0)
"""


class Reader:
    """The child process: hands it files one at a time and watches what becomes of it.

    Parameters
    ----------
    sound
        File that it reads first, to know what reading takes.
    """

    def __init__(self, sound: Path) -> None:
        arguments = [str(sound), str(ADDRESS_BYTES), str(SECONDS_PER_FILE)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.counts = {"ready": 0, "read": 0, "refused": 0}
        self.baseline = self._answer(sound)
        self.peak = self.baseline

    def read(self, path: Path) -> None:
        """Fail the test, keeping the file, if the child dies or takes too much memory."""
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        self.peak = self._answer(path)
        if self.peak - self.baseline > GROWTH_BYTES:
            self._fail(path, f"memory grew by {(self.peak - self.baseline) / 2**20:.0f} MiB")

    def _answer(self, path: Path) -> int:
        """Largest memory in use so far, in bytes."""
        outcome, _, peak = self.process.stdout.readline().partition(" ")
        if outcome not in self.counts:
            self._fail(path, "")
        self.counts[outcome] += 1
        return int(peak)

    def _fail(self, path: Path, why: str) -> None:
        kept = Path(f"{path}.culprit")
        shutil.copyfile(path, kept)
        _, said = self.process.communicate(timeout=60)
        pytest.fail(f"{kept}: {why} exit {self.process.returncode}: {said[-2000:]}")

    def close(self) -> dict[str, int]:
        """Counts of what was read and what was refused."""
        _, said = self.process.communicate(timeout=60)
        assert (self.process.returncode, said) == (0, "")
        return self.counts


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is measured as Linux reports it"
)


@pytest.fixture
def sources(tiny_file, tmp_path) -> list[Path]:
    """Sound files: everything optional, synthetic, chunked and compressed, with weights."""
    toy = tracegen.library.find("toy-zipf")
    part = tmp_path / "part.h5"
    recorded = tracegen.load("gpt-oss-20b-decode-weights", layers=[0, 9], tokens=slice(0, 500))
    tracegen.write(recorded, part)
    return [tiny_file, toy, part]


def flip(data: bytearray, rng: random.Random) -> None:
    """Damage some bytes: single bits, extremes, noise, runs, moved and repeated pieces."""
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        # The header and the object headers at its side decide everything else.
        at = rng.randrange(rng.choice([len(data), min(len(data), 4096), min(len(data), 512)]))
        kind = rng.randrange(7)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFE, 0xFF])
        elif kind == 2:
            data[at] = rng.randrange(256)
        elif kind == 3:
            width = rng.choice([2, 4, 8])
            value = rng.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(data), at])
            data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 4:
            data[at : at + rng.randrange(1, 64)] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 5:
            other, length = rng.randrange(len(data)), rng.randrange(1, 600)
            data[at : at + length] = data[other : other + length]
        else:
            del data[rng.randrange(len(data)) :]
            data.extend(bytes(8))


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
def test_four_times_1500_files_with_damaged_bytes(seed, sources, tmp_path):
    rng = random.Random(seed)
    reader = Reader(sources[0])
    path = tmp_path / "damaged.h5"
    wholes = [source.read_bytes() for source in sources]
    for _ in range(1500):
        data = bytearray(rng.choice(wholes))
        flip(data, rng)
        path.write_bytes(data)
        reader.read(path)
    counts = reader.close()
    assert counts["read"] + counts["refused"] == 1500
    assert min(counts["read"], counts["refused"]) > 200


DTYPES = ("u1", "u2", "u4", "u8", "i4", "i8", "f2", "f4", "f8", "S3", "S5000", "V5", ">u4", "?")
TEXTS = (b"", b"1.0.0", b"x" * 5000, b"\xff\xfe", b"[" * 9000, b"{}", b'{"tool": 1}', b"nan")


def mutate(file: h5py.File, rng: random.Random) -> None:
    """Change what the file declares, as HDF5 itself would write it."""
    paths: list[str] = []
    file.visit(paths.append)
    path = rng.choice(paths)
    node = file[path]
    kind = rng.randrange(8)
    if kind == 0:
        del file[path]
    elif kind == 1:
        holder = rng.choice([file, file["model"], file["routing/expert_ids"]])
        name = rng.choice([*holder.attrs, "odd"])
        holder.attrs[name] = rng.choice(
            [np.bytes_(rng.choice(TEXTS) or b"\0"), 0, -1, 2**63 - 1, np.nan, np.arange(3), True,
             "variable", np.float64(1e300), node.ref, h5py.Empty("f4")]
        )  # fmt: skip
    elif kind == 2 and isinstance(node, h5py.Dataset):
        place = node.name
        shape = tuple(
            rng.choice([size, size + 1, max(size - 1, 0), 0, 1, 70_000]) for size in node.shape
        )
        if np.prod(shape, dtype=np.float64) < 1e7:
            del file[path]
            file.create_dataset(place, shape, rng.choice(DTYPES))
    elif kind == 3 and isinstance(node, h5py.Dataset) and node.shape:
        place, dtype = node.name, node.dtype
        shape = tuple(rng.choice([1, 9, 2**20, 2**33, 2**40]) for _ in node.shape)
        del file[path]
        chunks = tuple(min(size, rng.choice([1, 16, 4096])) for size in shape)
        file.create_dataset(place, shape, dtype, chunks=chunks, compression="gzip", fillvalue=None)
    elif kind == 4 and isinstance(node, h5py.Dataset) and node.size and node.dtype.kind in "iufS":
        index = tuple(rng.randrange(size) for size in node.shape)
        if node.dtype.kind in "iu":
            limits = np.iinfo(node.dtype)
            node[index] = rng.choice([limits.min, limits.max, 0, 1, limits.max // 2])
        elif node.dtype.kind == "f":
            node[index] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -1.0])
        else:
            node[index] = rng.choice([b"\xff", b"", b"a\0b"])
    elif kind == 5:
        target = rng.choice([*paths, "nowhere"])
        link = rng.choice([h5py.SoftLink(f"/{target}"), h5py.ExternalLink("/etc/passwd", "/x")])
        del file[path]
        file[path] = link
    elif kind == 6:
        other = rng.choice(paths)
        if not other.startswith(path):
            del file[path]
            file[path] = file[other]
    elif isinstance(node, h5py.Dataset) and node.size:
        # A bomb: a great deal of nothing, honestly stored.
        place, dtype = node.name, node.dtype
        shape = tuple(min(4 * size, 2**21) for size in node.shape)
        if np.prod(shape, dtype=np.float64) * dtype.itemsize < 2e7:
            del file[path]
            file.create_dataset(place, data=np.zeros(shape, dtype), compression="gzip")


@pytest.mark.extended
def test_a_thousand_files_that_declare_something_else(sources, tmp_path):
    reader = Reader(sources[0])
    path = tmp_path / "changed.h5"

    @settings(max_examples=1000, database=None)
    @given(rng=st.randoms(use_true_random=False))
    def read_one(rng: random.Random) -> None:
        shutil.copyfile(rng.choice(sources), path)
        with h5py.File(path, "r+") as file:
            for _ in range(rng.choice([1, 1, 2, 3])):
                # Otherwise HDF5 would not write that, or an earlier change removed it.
                with contextlib.suppress(KeyError, ValueError, OSError, TypeError, RuntimeError):
                    mutate(file, rng)
        reader.read(path)

    read_one()
    counts = reader.close()
    assert counts["read"] + counts["refused"] >= 1000
    assert min(counts["read"], counts["refused"]) > 100


def test_a_child_that_takes_too_much_memory_or_dies_is_noticed(tiny_file, tmp_path, monkeypatch):
    large = tmp_path / "large.h5"
    trace = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=2**15)
    tracegen.write(trace, large)
    reader = Reader(tiny_file)
    monkeypatch.setattr(sys.modules[__name__], "GROWTH_BYTES", 2**22)
    with pytest.raises(pytest.fail.Exception, match=r"memory grew by \d+ MiB"):
        reader.read(large)
    reader = Reader(tiny_file)
    reader.process.kill()
    with pytest.raises(pytest.fail.Exception, match="exit -9"):
        reader._answer(tiny_file)
