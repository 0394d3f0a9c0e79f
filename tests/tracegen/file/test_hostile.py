"""Files that are damaged, lie, or mean harm: one line to the user, nothing run or allocated."""

import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable

import h5py
import numpy as np
import pytest

import tracegen
from tracegen import UserError


@pytest.fixture
def spoil(tiny_file) -> Callable:
    """Edit the tiny file with h5py, then load it and return the message of the refusal."""

    def edit_and_load(edit: Callable[[h5py.File], None]) -> str:
        with h5py.File(tiny_file, "r+") as file:
            edit(file)
        with pytest.raises(UserError) as refusal:
            tracegen.load(tiny_file)
        message = str(refusal.value)
        assert str(tiny_file) in message
        assert message.count(str(tiny_file)) == 1
        assert len(message.splitlines()) == 1
        return message.replace(str(tiny_file), "FILE")

    return edit_and_load


def replaced(path, array, **options):
    """An edit that puts another dataset in the place of one."""

    def edit(file):
        attributes = dict(file[path].attrs) if path in file else {}
        if path in file:
            del file[path]
        file.create_dataset(path, data=array, **options)
        file[path].attrs.update(attributes)

    return edit


def changed_at(path, index, value):
    """An edit of one value."""

    def edit(file):
        file[path][index] = value

    return edit


@pytest.mark.parametrize("size", [0, 1, 100, 2000, 12000])
def test_a_truncated_file(tiny_file, size):
    tiny_file.write_bytes(tiny_file.read_bytes()[:size])
    with pytest.raises(UserError, match="damaged, truncated or not HDF5"):
        tracegen.load(tiny_file)


def test_something_else_than_hdf5(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (sys.exit, (3,))

    path = tmp_path / "trace.h5"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="not HDF5"):
        tracegen.load(path)
    with pytest.raises(UserError, match="it is a folder, not a file"):
        tracegen.load(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        tracegen.load(tmp_path / "absent.h5")


def test_another_format_or_version(spoil):
    assert "FILE: not a routing trace" in spoil(lambda f: f.attrs.update(format=np.bytes_("anndata")))
    spoiled = spoil(lambda f: f.attrs.update(format=np.bytes_("moe-routing-trace"), schema_version=np.bytes_("2.0.0")))
    assert spoiled.startswith("FILE: format version '2.0.0'; this moereplay reads 1.x")
    assert "format version" in spoil(lambda f: f.attrs.update(schema_version=np.bytes_("one")))
    unfinished = spoil(lambda f: (f.attrs.update(schema_version=np.bytes_("1.0.0")), f.attrs.pop("content_sha256")))
    assert "not finished" in unfinished


@pytest.mark.parametrize("path", ["model", "routing/expert_ids", "tokens", "tokens/phase", "steps/indptr", "summary"])
def test_a_missing_group_or_dataset(spoil, path):
    message = spoil(lambda f: f.pop(path))
    assert "is missing" in message
    assert f"/{path}" in message


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            changed_at("routing/expert_ids", (1, 3, 0), 6),
            "layer 3, row 3, slot 0: expert 6 does not",
        ),
        (changed_at("routing/expert_ids", (0, 4, 1), 3), "layer 1, row 4: expert 3 is there twice"),
        (
            changed_at("routing/gate_weights", (1, 2, 0), np.nan),
            "layer 3, row 2, slot 0: nan is not",
        ),
        (changed_at("routing/gate_weights", (1, 2, 0), -np.inf), "is not a finite number"),
        (changed_at("routing/flags", (0, 1), 4), "flags: layer 1, row 1: 4 has unknown bits"),
        (changed_at("tokens/step", 1, 9), "tokens.step falls from 9 to 0 at row 2"),
        (changed_at("tokens/step", 4, 8), "steps indptr does not match"),
        (changed_at("steps/indptr", 1, 2), "steps indptr does not match"),
        (changed_at("tokens/phase", 3, 9), "tokens.phase is 9 at row 3"),
        (changed_at("model/moe_layer_index", 1, 1), "moe_layer_index must ascend"),
    ],
)
def test_values_that_break_an_invariant(spoil, edit, message):
    assert message in spoil(edit)


@pytest.mark.parametrize(
    ("path", "array", "message"),
    [
        ("routing/expert_ids", np.zeros((2, 5, 2), np.int64), "holds int64; it must be u1 or u2"),
        (
            "routing/expert_ids",
            np.tile(np.arange(2, dtype=np.uint16), (2, 5, 1)),
            "expert_ids is uint16",
        ),
        ("routing/expert_ids", np.zeros((2, 5), np.uint8), "must be (layer, token, k)"),
        (
            "routing/gate_weights",
            np.zeros((2, 5, 3), np.float16),
            "3 along k, other datasets have 2",
        ),
        ("tokens/rank", np.zeros(6, np.uint16), "6 along token, other datasets have 5"),
        ("tokens/step", np.zeros(5, [("a", "u4")]), "it must be u4"),
        ("tokens/step", np.array(["a"] * 5, dtype=h5py.string_dtype()), "it must be u4"),
        ("requests/label", np.array(["a", "b"], dtype=h5py.string_dtype()), "it must be S"),
        ("requests/label", np.array([b"a", b"\xff"]), "damaged"),
        ("requests/label", np.array([b"a" * 5000, b""]), "strings of 5000 bytes"),
        ("steps/indptr", np.uint64(3), "must be (step+1)"),
        ("steps/indptr", np.zeros(0, np.uint64), "-1 along step"),
        ("summary/load", np.zeros((2, 7), np.uint64), "is for 7 experts"),
        ("model/moe_layer_index", h5py.Empty("u2"), "must be (layer)"),
    ],
)
def test_types_and_shapes_that_do_not_fit(spoil, path, array, message):
    assert message in spoil(replaced(path, array))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f["model"].attrs.update(num_experts=np.bytes_("6")), "must be one int"),
        (lambda f: f["model"].attrs.update(num_experts=np.arange(3)), "must be one int"),
        (lambda f: f["model"].attrs.update(num_experts=0), "0 experts"),
        (lambda f: f["model"].attrs.update(num_experts=2**40), "possible are 0 to"),
        (lambda f: f["model"].attrs.update(top_k=3), "top_k 3"),
        (lambda f: f["model"].attrs.update(routed_scaling_factor=np.nan), "not a finite number"),
        (lambda f: f["model"].attrs.pop("hidden_size"), "'hidden_size' is missing"),
        (lambda f: f["model"].attrs.update(shape=np.bytes_("{}")), "'shape': name: Field required"),
        (lambda f: f.attrs.update(provenance=np.bytes_("[1")), "'provenance' is not JSON"),
        (lambda f: f.attrs.update(provenance=np.bytes_("[" * 50_000)), "'provenance' is not JSON"),
        (lambda f: f.attrs.update(provenance=np.bytes_("[1]")), "not a JSON object"),
        (
            lambda f: f.attrs.update(kind=np.bytes_("pickled")),
            "possible: synthetic, captured, imported",
        ),
        (lambda f: f.attrs.update(title="of variable length"), "must be one text of fixed length"),
        (
            lambda f: f.attrs.update(title=np.array([b"a", b"b"])),
            "must be one text of fixed length",
        ),
        (lambda f: f.attrs.update(title=np.bytes_(b"\xff")), "damaged"),
        (lambda f: f.attrs.update(title=f["routing"].ref), "must be one text of fixed length"),
    ],
)
def test_attributes_that_do_not_fit(spoil, edit, message):
    assert message in spoil(edit)


def test_data_that_lives_elsewhere(spoil, tmp_path):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros(5, np.uint32)

    def as_link(link):
        def edit(file):
            file.pop("tokens/step", None)
            file["tokens/step"] = link

        return edit

    assert "is a ExternalLink to elsewhere" in spoil(as_link(h5py.ExternalLink(str(other), "/x")))
    assert "is a SoftLink to elsewhere" in spoil(as_link(h5py.SoftLink("/tokens/request")))

    def virtual(file):
        del file["tokens/step"]
        layout = h5py.VirtualLayout((5,), "u4")
        layout[:] = h5py.VirtualSource(str(other), "x", (5,))
        file.create_virtual_dataset("tokens/step", layout)

    assert "virtual or external" in spoil(virtual)
    raw = tmp_path / "raw.bin"
    raw.write_bytes(bytes(20))
    external = replaced("tokens/step", np.zeros(5, np.uint32), external=[(str(raw), 0, 20)])
    assert "virtual or external" in spoil(external)


def test_a_group_that_is_a_link(spoil):
    def edit(file):
        file.move("tokens", "moved")
        file["tokens"] = h5py.SoftLink("/moved")

    assert "/tokens/step is a SoftLink" in spoil(edit)


def test_references_where_numbers_belong(spoil):
    def edit(file):
        del file["tokens/step"]
        file.create_dataset("tokens/step", (5,), h5py.ref_dtype)

    assert "it must be u4" in spoil(edit)


def test_filters_that_need_a_plugin(spoil):
    lzf = replaced("tokens/step", np.zeros(5, np.uint32), chunks=(5,), compression="lzf")
    assert "HDF5 filter 32000; allowed are gzip, shuffle and fletcher32" in spoil(lzf)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 10**12, 2), "along token; at most"),
        ((2, 10**9, 2), "but only 0 are stored"),
        ((2, 4 * 10**9, 2), "but only 0 are stored"),
        ((10**6, 8192, 2), "1000000 along layer; at most"),
    ],
)
def test_sizes_that_the_file_cannot_hold(spoil, shape, message):
    def edit(file):
        del file["routing/expert_ids"]
        file.create_dataset("routing/expert_ids", shape, "u1", chunks=(1, 8192, 2), fillvalue=1)

    assert message in spoil(edit)


def test_a_column_that_was_partly_written(spoil):
    """Chunks that were never written would read as zeros."""

    def edit(file):
        for path in ("request", "position", "step"):
            del file["tokens"][path]
        column = file.create_dataset("tokens/step", (5,), "u4", chunks=(1,), compression="gzip")
        column[:3] = 7

    assert "3 chunks are stored, 5 are declared" in spoil(edit)


def test_a_contiguous_dataset_larger_than_its_file(spoil):
    def edit(file):
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
        del file["tokens/step"]
        space = h5py.h5s.create_simple((4 * 10**9,))
        h5py.h5d.create(file["tokens"].id, b"step", h5py.h5t.NATIVE_UINT32, space, creation)

    assert "tokens/step" in spoil(edit)


def test_chunks_too_large_to_decode(spoil):
    def edit(file):
        del file["tokens/step"]
        file.create_dataset("tokens/step", (5,), "u4", chunks=(5,), maxshape=(None,), data=[0] * 5)
        del file["tokens/step"]
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((2**28,))
        space = h5py.h5s.create_simple((5,), (h5py.h5s.UNLIMITED,))
        h5py.h5d.create(file["tokens"].id, b"step", h5py.h5t.NATIVE_UINT32, space, creation)

    assert "chunks of 1073741824 bytes; at most 67108864" in spoil(edit)


@pytest.mark.extended
def test_a_compressed_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """Well-formed, 290 MB of zeros in 1 MB: refused by its first layer, in little memory."""
    path = tmp_path / "bomb.h5"
    trace = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=9, layers=2)
    tracegen.write(trace, path)
    rows, layers = 2**21, 16
    with h5py.File(path, "r+") as file:
        zeros = {"compression": "gzip", "chunks": True}
        for path_in_file, shape, dtype in (
            ("routing/expert_ids", (layers, rows, 8), "u1"),
            *((f"tokens/{name}", (rows,), "u4") for name in ("step", "request", "position")),
            ("tokens/phase", (rows,), "u1"),
            ("tokens/rank", (rows,), "u2"),
        ):
            del file[path_in_file]
            chunks = (1, 2**20, 8) if len(shape) == 3 else (2**20,)
            data = file.create_dataset(path_in_file, shape, dtype, **{**zeros, "chunks": chunks})
            for layer in range(layers if len(shape) == 3 else 1):
                data[layer if len(shape) == 3 else ...] = np.zeros(shape[1:] if len(shape) == 3 else shape, dtype)
        for name, array in (
            ("model/moe_layer_index", np.arange(layers, dtype=np.uint16)),
            ("steps/indptr", np.array([0, rows], np.uint64)),
            ("summary/load", np.zeros((layers, 64), np.uint64)),
        ):
            del file[name]
            file[name] = array
    assert path.stat().st_size < 4e6
    # Not ru_maxrss: a child process inherits its parent's.
    script = f"""
        import re, tracegen
        from pathlib import Path
        try:
            tracegen.load({str(path)!r})
        except tracegen.UserError as error:
            print(error)
        status = Path("/proc/self/status").read_text()
        print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    message, peak_MiB = done.stdout.splitlines()
    assert "layer 0, row 0: expert 0 is there twice" in message
    assert int(peak_MiB) < 450


@pytest.mark.parametrize("read", [tracegen.load, tracegen.library.verify])
def test_a_changed_value_is_found_though_it_is_plausible(tiny_file, read):
    with h5py.File(tiny_file, "r+") as file:
        file["tokens/token_id"][0] = 18
    with pytest.raises(UserError, match="does not match content_sha256"):
        read(tiny_file)


def test_a_summary_that_lies_is_found_by_verification(tiny_file):
    with h5py.File(tiny_file, "r+") as file:
        file["summary/load"][1, 0] += 1
    with pytest.raises(UserError, match=r"summary/load of layer 3 is not what the ids say"):
        tracegen.library.verify(tiny_file)


def test_a_corrupt_chunk_is_found_by_its_checksum(tmp_path):
    path = tmp_path / "trace.h5"
    tracegen.write(tracegen.load("toy-uniform"), path)
    with h5py.File(path) as file:
        chunk = file["routing/expert_ids"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"/routing/expert_ids: damaged"):
        tracegen.load(path)
    tracegen.load(path, layers=[0])  # the other layer is untouched


@pytest.mark.extended
@pytest.mark.parametrize("source", ["tiny", "toy"])
def test_flipped_bytes_end_in_a_trace_or_in_one_line(source, tiny_file, tmp_path):
    """Any damage, header first: never another exception, a crash or a hang of the library."""
    path = tmp_path / "damaged.h5"
    whole = tiny_file if source == "tiny" else tracegen.library.find("toy-zipf")
    script = f"""
        import pathlib, random, resource, tracegen
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)
        rng, path = random.Random(1), pathlib.Path({str(path)!r})
        whole = pathlib.Path({str(whole)!r}).read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 2, 8])):
                at = rng.randrange(rng.choice([len(data), 4096]))
                flipped = data[at] ^ 1 << rng.randrange(8)
                data[at] = rng.choice([0, 255, rng.randrange(256), flipped])
            path.write_bytes(data)
            try:
                tracegen.load(path)
            except tracegen.UserError:
                pass
    """
    call = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
