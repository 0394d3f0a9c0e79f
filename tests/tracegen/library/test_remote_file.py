"""A file behind ranges reads like a local one, and a trace in it takes few of them."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracegen
from tracegen import UserError
from tracegen.library import remote_file


def test_a_file_with_many_chunks_opens_in_few_requests(tmp_path):
    """HDF5 scatters its indexes over the file unless it is told to keep them together."""
    trace = tracegen.generate.generate("uniform", "mixtral-8x7b", ranks=1, tokens_per_rank=2**16, layers=32)
    path = tmp_path / "many.h5"
    tracegen.write(trace, path)
    file = remote_file.RemoteFile(LocalRanges(path), lambda action: action())
    with tracegen.open(file) as opened:
        assert opened.num_layers == 32
        assert file.requests <= 3
        layer = opened.read([20])
    np.testing.assert_array_equal(layer.expert_ids[0], trace.expert_ids[20])
    assert file.requests <= 12
    assert file.fetched_bytes < path.stat().st_size / 3


class LocalRanges:
    """A local file as if it were remote."""

    validator, has_ranges = "", True

    def __init__(self, path):
        self.url, self.size, self.path = str(path), path.stat().st_size, path

    def read(self, start, stop):
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 200_000)), max_size=12))
def test_a_remote_file_reads_like_a_local_one(reads):
    data = np.random.default_rng(0).bytes(290_001)
    local = io.BytesIO(data)

    class Source(LocalRanges):
        def __init__(self):
            self.url, self.size = "x", len(data)

        def read(self, start, stop):
            assert 0 <= start < stop <= len(data)
            return data[start:stop]

    with remote_file.RemoteFile(Source(), lambda action: action()) as remote:
        for start, size in reads:
            local.seek(start)
            remote.seek(start)
            assert remote.read(size) == local.read(size)
            assert remote.tell() == (local.tell() if start < len(data) else start)
        assert remote.seek(-5, 2) == len(data) - 5


def test_a_source_that_hands_out_too_little_is_no_endless_loop(tmp_path):
    class Short(LocalRanges):
        def read(self, start, stop):
            return super().read(start, stop)[:-1]

    path = tmp_path / "a.h5"
    path.write_bytes(bytes(100_000))
    with (
        remote_file.RemoteFile(Short(path), lambda action: action()) as remote,
        pytest.raises(UserError, match=r"a.h5: 65535 of 65536 bytes arrived"),
    ):
        remote.read(10)


def test_what_is_wanted_at_once_is_asked_for_at_once(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(bytes(2**20))
    with remote_file.RemoteFile(LocalRanges(path), lambda action: action()) as remote:
        remote.seek(3 * remote_file.PAGE_BYTES)
        remote.read(5 * remote_file.PAGE_BYTES)
        assert (remote.requests, remote.fetched_bytes) == (1, 5 * remote_file.PAGE_BYTES)
        remote.seek(4 * remote_file.PAGE_BYTES)
        remote.read(100)
        assert remote.requests == 1
