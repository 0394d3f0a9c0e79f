"""Traces from a server: whole, in part, again, and whatever can go wrong on the way."""

import hashlib
import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import tracegen
from tracegen import UserError, library
from tracegen.library import cache, remote_file, resolve, watch


def size_of(remote, name="one"):
    return len(remote.files[f"/t/{name}.h5"])


def leftovers(tmp_path):
    """Files of the cache that are not a whole trace, a lock or a catalogue."""
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    return [path.name for path in files if path.suffix not in (".h5", ".lock", ".toml", ".json")]


def test_a_trace_is_downloaded_once_and_is_the_same(remote, folder, tmp_path):
    got = tracegen.load("one")
    assert got.content_id == tracegen.load(folder / "one.h5").content_id
    asked = len(remote.log)
    np.testing.assert_array_equal(tracegen.load("one").expert_ids, got.expert_ids)
    assert len(remote.log) == asked
    path = library.find("one")
    assert path.read_bytes() == (folder / "one.h5").read_bytes()
    assert path.is_relative_to(tmp_path / "cache")
    assert not leftovers(tmp_path)


def test_catalogues_share_what_is_the_same(remote, monkeypatch):
    tracegen.load("one")
    asked = len(remote.log)
    remote.files |= {k.replace("/t/", "/u/"): v for k, v in remote.files.items()}
    tracegen.load("one", catalogue=f"{remote.url}/u")
    assert {path for path, _ in remote.log[asked:]} == {"/u/index.toml"}


def test_one_layer_is_read_in_place(remote, folder, tmp_path):
    part = tracegen.load("one", layers=[5])
    np.testing.assert_array_equal(part.expert_ids, tracegen.load(folder / "one.h5", layers=[5]).expert_ids)
    assert part.stored_content_id == library.lookup("one").entry.content_id
    assert remote.sent < 0.75 * size_of(remote)
    assert not list((tmp_path / "cache").rglob("*.h5"))
    with tracegen.open("one") as file:  # the header alone
        assert file.num_layers == 8


def test_a_layer_of_a_large_file_takes_few_requests_and_little_more_than_itself(server, tmp_path):
    source = library.find("gpt-oss-20b-decode")
    server.files["/g.h5"] = source.read_bytes()
    layer = tracegen.load(f"{server.url}/g.h5", layers=[11])
    np.testing.assert_array_equal(layer.expert_ids, tracegen.load("gpt-oss-20b-decode", layers=[11]).expert_ids)
    # The layer's ids and the token table are 0.37 and 0.84 MB of 9.7 MB.
    assert server.sent < 2.6e6
    assert len(server.log) < 25


def test_a_cache_that_cannot_be_written(remote, tmp_path, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where a folder should be")
    monkeypatch.setenv("MOEREPLAY_CACHE", str(blocked))
    assert tracegen.load("one", layers=[1]).num_layers == 1
    with pytest.raises(UserError, match=r"cannot write .*blocked.*: Not a directory"):
        tracegen.load("one")


def test_a_disk_that_fills_up(remote, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_take", full)
    with pytest.raises(UserError, match=r"one.h5: cannot be written \(No space left on device\)"):
        tracegen.load("one")


def test_a_url_is_downloaded_and_again_only_if_it_changed(remote, folder):
    url = f"{remote.url}/t/one.h5"
    first = tracegen.load(url)
    sent = remote.sent
    assert tracegen.load(url).content_id == first.content_id
    assert remote.sent == sent + 1  # only whether it is still the same
    remote.files["/t/one.h5"] = (folder / "two.h5").read_bytes()
    remote.etag = '"two"'
    assert tracegen.load(url).content_id == library.lookup("two").entry.content_id


@pytest.mark.parametrize("etag", ['"one"', 'W/"weak"', None])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_taken_up_again(remote, tmp_path, ranges, etag):
    remote.ranges, remote.etag = ranges, etag
    # The first answers are to requests for the index and for the first byte of the file.
    remote.cut = [None, None, None, 70_000, 1000, 0]
    tracegen.load("one")
    assert not remote.cut
    asked = [what for path, what in remote.log if path == "/t/one.h5"]
    assert asked[:2] == ["bytes=0-0", None]
    if ranges:
        assert asked[2:] == ["bytes=70000-", "bytes=71000-", "bytes=71000-"]
        assert remote.sent < size_of(remote) + 30_000
    assert not leftovers(tmp_path)


def test_a_download_that_was_given_up_goes_on_the_next_time(remote, tmp_path):
    remote.cut = [None, None, None, 70_000, 0, 0, 0, 0, 0, 0]
    with pytest.raises(UserError, match=r"70000 of \d+ bytes arrived; given up after 5 attempts"):
        tracegen.load("one")
    assert leftovers(tmp_path) == ["one.h5.part"]
    remote.cut = []
    tracegen.load("one")
    assert remote.log[-1] == ("/t/one.h5", "bytes=70000-")
    assert not leftovers(tmp_path)


def test_a_connection_may_break_often_as_long_as_something_arrives(remote, monkeypatch):
    monkeypatch.setattr(cache, "PROGRESS_BYTES", 1000)
    remote.cut = [None, None, None, *[2000] * (4 * cache.ATTEMPTS)]
    tracegen.load("one")
    assert not remote.cut


def test_a_server_that_sends_too_little_is_told_whatever_hdf5_makes_of_it(remote, monkeypatch):
    monkeypatch.setattr(remote_file, "PAGE_BYTES", 512)
    for pages in (0, 1, 2, 5, 12):
        # The index and the first byte of the file; then some pages; then nothing that is asked for.
        remote.cut = [None, None, None, *[None] * pages, *[100] * cache.ATTEMPTS]
        with pytest.raises(UserError, match=r"^http://\S+one.h5: 100 of \d+ bytes arrived$"):
            tracegen.load("one", layers=[0])
        assert not remote.cut


def test_a_part_of_another_version_of_the_file_is_started_again(remote, tmp_path):
    entry = library.lookup("one").entry
    part = tmp_path / "cache/files" / entry.sha256 / "one.h5.part"
    for wrong in (b"\x89HDF\r\n\x1a\n" + bytes(5000), bytes(entry.file_bytes + 1)):
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(wrong)
        assert hashlib.sha256(library.find("one").read_bytes()).hexdigest() == entry.sha256
        library.find("one").unlink()
    assert not leftovers(tmp_path)


def test_wrong_bytes_are_refused_and_not_kept(remote, tmp_path):
    library.lookup("one")
    remote.spoil = True
    remote.files["/t/one.h5"] = b"\x89HDF\r\n\x1a\n" + remote.files["/t/one.h5"][8:]
    with pytest.raises(UserError, match=r"/t/one.h5: SHA-256 is [0-9a-f]{64}, the catalogue says"):
        tracegen.load("one")
    assert not leftovers(tmp_path)
    assert not list((tmp_path / "cache").rglob("*.h5"))
    # A URL has no hash to compare with, but the file's own checks find it.
    with pytest.raises(UserError, match=r"one.h5: .*(damaged|match)"):
        tracegen.load(f"{remote.url}/t/one.h5")
    assert not list((tmp_path / "cache").rglob("*.h5"))


def test_a_cached_file_that_was_damaged_is_fetched_again(remote):
    path = library.find("one")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert library.fetch("one") == path
    assert path.read_bytes() == remote.files["/t/one.h5"]


def test_a_catalogue_that_contradicts_its_file(remote, folder, tmp_path):
    text = (folder / "index.toml").read_text()
    entry = library.lookup("one").entry
    resolve._read_remote.cache_clear()
    remote.files["/t/index.toml"] = text.replace(entry.content_id, "0" * 64).encode()
    with pytest.raises(UserError, match="is not the catalogue's 0000"):
        tracegen.load("one")
    with pytest.raises(UserError, match="is not the index's 0000"):
        tracegen.load("one", layers=[0])
    resolve._read_remote.cache_clear()
    changed = text.replace(f"file_bytes = {entry.file_bytes}", "file_bytes = 1000000000000")
    remote.files["/t/index.toml"] = changed.encode()
    with pytest.raises(UserError, match=rf"{entry.file_bytes} bytes; 1000000000000 were announced"):
        tracegen.load("one")
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/elsewhere/one.h5", None),
        ("/t/one.h5", "redirect"),  # to itself
        ("file:///etc/passwd", "is not allowed"),
        ("ftp://127.0.0.1/one.h5", "which is not followed"),
    ],
)
def test_redirections(remote, target, message):
    remote.files["/elsewhere/one.h5"] = remote.files["/t/one.h5"]
    remote.redirect["/t/one.h5"] = target
    if message is None:
        tracegen.load("one")
        return
    with pytest.raises(UserError, match=message):
        tracegen.load("one")
    assert len(remote.log) < 12


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "answered 404 Not Found"), (403, "answered 403"), (416, "answered 416")],
)
def test_refusals_of_the_server_are_final(remote, status, message):
    remote.status = [200, 200, status, status]
    with pytest.raises(UserError, match=rf"/t/one.h5: the server {message}"):
        tracegen.load("one")
    assert len(remote.log) == 3


def test_a_busy_server_is_asked_again(remote):
    remote.status = [503, 200, 429, 200, 500, 200, 502]
    assert tracegen.load("one").num_layers == 8
    remote.status = [503] * 99
    with pytest.raises(UserError, match="answered 503"):
        tracegen.load("two")
    assert len(remote.status) == 94


def test_a_server_that_says_nothing(remote, monkeypatch):
    library.lookup("one")
    monkeypatch.setattr(watch, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(cache, "ATTEMPTS", 2)
    remote.silent = 0.3
    with pytest.raises(UserError, match="timed out"):
        tracegen.load("one")


def test_a_server_that_trickles(remote, monkeypatch):
    library.lookup("one")
    monkeypatch.setattr(watch, "PATIENCE_S", 0.05)
    monkeypatch.setattr(cache, "ATTEMPTS", 2)
    remote.trickle = 0.01
    with pytest.raises(UserError, match="slower than 1000 bytes per second"):
        tracegen.load("one")
    with pytest.raises(UserError, match="slower than 1000 bytes per second"):
        tracegen.load("one", layers=[0])


def test_a_body_without_end(remote, tmp_path):
    library.lookup("one")
    remote.endless, remote.length, remote.ranges = True, False, False
    with pytest.raises(UserError, match=r"the server sends more than \d+ bytes"):
        tracegen.load("one")
    remote.files["/t/page.html"] = b"<!DOCTYPE html>"
    with pytest.raises(UserError, match=r"page.html: not HDF5; it begins with b'<!DOCTYPE html>"):
        tracegen.load(f"{remote.url}/t/page.html")
    resolve._read_remote.cache_clear()
    (tmp_path / "cache/catalogues").rename(tmp_path / "gone")
    with pytest.raises(UserError, match=r"index.toml: larger than 16777216 bytes"):
        library.search(f"{remote.url}/t")
    assert remote.sent < 60e6


def test_more_than_the_disk_holds(remote, folder, monkeypatch):
    remote.ranges, remote.length = False, False
    entry = library.lookup("one").entry
    changed = (folder / "index.toml").read_text()
    changed = changed.replace(f"file_bytes = {entry.file_bytes}", f"file_bytes = {2**42}")
    remote.files["/t/index.toml"] = changed.encode()
    resolve._read_remote.cache_clear()
    with pytest.raises(UserError, match=f"{2**42} bytes are needed"):
        tracegen.load("one")
    monkeypatch.setattr(cache, "SPARE_BYTES", 2**60)
    with pytest.raises(UserError, match="are free"):
        tracegen.load(f"{remote.url}/t/two.h5")


def test_a_server_without_ranges_sends_the_whole_file_instead(remote, folder):
    remote.ranges = False
    part = tracegen.load("one", layers=[3])
    np.testing.assert_array_equal(part.expert_ids, tracegen.load(folder / "one.h5", layers=[3]).expert_ids)
    assert library.lookup("one").cached is not None


def test_failures_while_reading_in_place(remote, monkeypatch):
    whole = tracegen.load(library.find("two"))
    library.find("two").unlink()
    # Index, its size, size of the file, then pages.
    remote.cut = [None, None, None, 100]
    np.testing.assert_array_equal(tracegen.load("two", layers=[1]).expert_ids[0], whole.expert_ids[1])
    remote.status = [200, 200, 404]
    with pytest.raises(UserError, match=r"^http.*one.h5: the server answered 404"):
        tracegen.load("one", layers=[7])
    library.lookup("one")
    with tracegen.open("one") as file:
        remote.etag = '"two"'
        with pytest.raises(UserError, match=r"one.h5: changed while it was read"):
            file.read([7])


def test_offline_nothing_is_asked(remote, monkeypatch):
    url = f"{remote.url}/t/two.h5"
    tracegen.load("one")
    tracegen.load(url)
    remote.log.clear()
    resolve._read_remote.cache_clear()
    monkeypatch.setenv("MOEREPLAY_OFFLINE", "1")
    assert tracegen.load("one", layers=[2]).num_layers == 1
    assert tracegen.load(url, layers=[0]).num_layers == 1
    assert tracegen.load(url).num_layers == 2
    assert [item.entry.name for item in library.search()[0]][-2:] == ["one", "two"]
    for name in ("two", f"{remote.url}/t/one.h5"):
        with pytest.raises(UserError, match=r"not in the cache .* connections are switched off"):
            tracegen.load(name)
        with pytest.raises(UserError, match=r"not in the cache .* connections are switched off"):
            tracegen.load(name, layers=[0])
    with pytest.raises(UserError, match=r"index.toml: not in the cache"):
        library.search(f"{remote.url}/other")
    assert not remote.log


def test_a_dead_server_leaves_what_was_read_before(remote, caplog):
    tracegen.load("one")
    resolve._read_remote.cache_clear()
    remote.status = [500] * 99
    assert tracegen.load("one").num_layers == 8
    assert "using what was read before" in caplog.text


def test_two_at_a_time_download_once(remote):
    threads = [threading.Thread(target=library.fetch, args=("one",)) for _ in range(4)]
    library.lookup("one")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = [path for path, what in remote.log if path == "/t/one.h5" and what is None]
    assert len(whole) == 1


@pytest.mark.extended
def test_a_killed_download_leaves_no_lock_and_no_file(remote, tmp_path):
    remote.trickle = 1e-5
    script = "import tracegen; tracegen.load('one')"
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ})
    while not [p for p in (tmp_path / "cache").rglob("*.part") if p.stat().st_size > 100]:
        assert process.poll() is None
    process.kill()
    process.wait()
    assert not list((tmp_path / "cache").rglob("*.h5"))
    remote.trickle = 0
    tracegen.load("one")
    assert remote.log[-1][1].startswith("bytes=")


def test_other_protocols_go_through_fsspec(folder, tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="pip install 'moereplay[remote]'")
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/lib/{path.name}", path.read_bytes())
    try:
        found, problems = library.search("memory://lib")
        assert [item.entry.name for item in found] == ["one", "two"]
        assert not problems
        part = tracegen.load("one", layers=[5], catalogue="memory://lib")
        np.testing.assert_array_equal(part.expert_ids, tracegen.load(folder / "one.h5", layers=[5]).expert_ids)
        assert not list((tmp_path / "cache").rglob("*.h5"))
        whole = tracegen.load("one", catalogue="memory://lib")
        assert whole.content_id == part.stored_content_id
        with pytest.raises(UserError, match=r"memory://lib/three.h5: FileNotFoundError"):
            tracegen.load("memory://lib/three.h5")
    finally:
        system.store.clear()


def test_a_package_that_is_missing_is_named(monkeypatch):
    pytest.importorskip("fsspec", reason="pip install 'moereplay[remote]'")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match=r"^s3://bucket/a.h5: Install s3fs"):
        tracegen.load("s3://bucket/a.h5")


def test_a_refused_connection_is_told_at_once(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/t.h5"
        monkeypatch.setattr(cache.time, "sleep", lambda seconds: pytest.fail("it waited"))
        with pytest.raises(UserError, match="the connection was refused; no server listens there"):
            tracegen.load(url)
