"""A file object may fail however it likes: HDF5 never sees it, and nothing read so is believed."""

import io
import subprocess
import sys

import pytest

import tracegen
from tracegen import UserError

SCRIPT = """
import io, sys
import tracegen

data = open(sys.argv[1], "rb").read()

class Failing(io.BytesIO):
    name, left = "it", 0

    def readinto(self, buffer):
        self.left -= 1
        return super().readinto(buffer) if self.left >= 0 else fail(self, memoryview(buffer))

class Reading:  # what has no readinto
    name = "it"

    def __init__(self, data):
        self.file = Failing(data)

    def seek(self, *where):
        return self.file.seek(*where)

    def read(self, size):
        got = bytearray(size)
        return bytes(got[:self.file.readinto(got)])

def short(file, buffer):
    return io.BytesIO.readinto(file, buffer[:-1])

def none(file, buffer):
    return 0

def error(file, buffer):
    raise OSError("gone")

def ended(file, buffer):
    raise KeyboardInterrupt

for kind in (Failing, Reading):
    for turn, fail in enumerate((short, none, error, ended)):
        for left in range(turn % 3, 500, 3):  # each read fails in one way or another
            file = kind(data)
            (file if kind is Failing else file.file).left = left
            try:
                with tracegen.open(file) as opened:
                    opened.verify()
                break
            except BaseException as error_:
                print(fail.__name__, type(error_).__name__, error_)
        assert 20 < left < 499
"""


@pytest.mark.extended
def test_hdf5_survives_a_file_object_that_fails_anywhere(tmp_path):
    trace = tracegen.generate.generate("uniform", "mixtral-8x7b", ranks=1, tokens_per_rank=64, layers=2)
    tracegen.write(trace, tmp_path / "a.h5")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "a.h5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in done.stdout.splitlines():
        fail, kind, *said = line.split(" ", 2)
        if fail == "ended":
            assert (kind, said) == ("KeyboardInterrupt", [""])
        elif fail == "error":
            assert (kind, said) == ("UserError", ["it: gone"])
        else:
            assert kind == "UserError" and said[0].endswith("bytes arrived"), line


def test_an_error_that_is_never_caught_ends_the_process_in_order():
    """What HDF5 had open until then must not call an interpreter that is not there any more."""
    script = "import io, tracegen; tracegen.open(io.BytesIO(bytes(9999))).__enter__()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert done.stderr.splitlines()[-1].endswith("(file signature not found))"), done.stderr


def test_a_tiny_or_closed_file_object_is_refused():
    for size in (0, 1, 8, 100):
        with (
            pytest.raises(UserError, match=r"stream: damaged, truncated or not HDF5"),
            tracegen.open(io.BytesIO(bytes(size))),
        ):
            pass
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(UserError, match=r"stream: .*closed"), tracegen.open(closed):
        pass
