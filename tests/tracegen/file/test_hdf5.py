"""Writing and reading back: nothing lost, nothing half-written, nothing read in vain."""

import dataclasses
import io

import h5py
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegen
from tracegen import RequestTable, RoutingTrace, TokenTable, TraceInfo, TraceModel, UserError
from tracegen.trace.checks import boundaries
from tracegen.trace.tables import expert_dtype


@st.composite
def traces(draw):
    """Any small trace: odd sizes, empty slots, zero tokens, optional columns or not."""
    num_experts = draw(st.sampled_from([1, 2, 5, 64, 255, 256, 300]))
    topk = draw(st.integers(1, min(num_experts, 4)))
    layers, tokens = draw(st.integers(1, 3)), draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = expert_dtype(num_experts)
    ids = rng.random((layers, tokens, num_experts)).argsort(axis=2)[:, :, :topk].astype(dtype)
    if draw(st.booleans()):
        ids[rng.random(ids.shape) < 0.2] = np.iinfo(dtype).max
    body = (layers, tokens, topk)
    halves = hnp.arrays(np.float16, body, elements=st.floats(-4, 4, width=16))

    def column(dtype):
        return rng.integers(0, 100, tokens).astype(dtype)

    step = np.sort(column(np.uint32))
    num_requests = draw(st.integers(0, 5))
    text = st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8),
        min_size=num_requests,
        max_size=num_requests,
    )
    return RoutingTrace(
        model=TraceModel(num_experts=num_experts, top_k=topk, hidden_size=8, model_id="any"),
        moe_layer_index=np.arange(layers, dtype=np.uint16) * 2,
        expert_ids=ids,
        gate_weights=draw(st.none() | halves),
        flags=draw(st.none() | st.just(np.full((layers, tokens), 2, np.uint8))),
        tokens=TokenTable(
            step=step,
            request=column(np.uint32),
            position=column(np.uint32),
            phase=column(np.uint8) % 4,
            rank=draw(st.none() | st.just(column(np.uint16))),
            token_id=draw(st.none() | st.just(column(np.int32))),
        ),
        steps_indptr=boundaries(step),
        requests=RequestTable(
            id=np.arange(num_requests, dtype=np.uint32),
            label=np.array(draw(text), np.str_),
        ),
        info=TraceInfo(kind="captured", slot_order="native"),
    )


@given(trace=traces(), data=st.data())
@settings(max_examples=25)
def test_what_is_written_is_read_back_whole_or_in_part(tmp_path_factory, trace, data, same):
    path = tmp_path_factory.getbasetemp() / "round-trip.h5"
    digest = tracegen.write(trace, path, overwrite=True)
    back = tracegen.load(path)
    same(back, trace)
    assert tracegen.library.verify(path) == back.content_id == trace.content_id == digest
    layers = data.draw(st.lists(st.integers(0, trace.num_layers - 1), unique=True).map(sorted))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, trace.num_tokens)] * 2)))
    part = tracegen.load(path, layers=layers, tokens=slice(start, stop))
    np.testing.assert_array_equal(part.expert_ids, trace.expert_ids[layers, start:stop])
    np.testing.assert_array_equal(part.moe_layer_index, trace.moe_layer_index[layers])
    np.testing.assert_array_equal(part.tokens.step, trace.tokens.step[start:stop])
    assert part.stored_content_id == digest
    part.validate()


class CountedFile(io.FileIO):
    """A file that knows how many bytes were asked of it."""

    bytes_read = 0

    def readinto(self, buffer):
        count = super().readinto(buffer)
        self.bytes_read += count
        return count


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.h5"
    trace = tracegen.generate.generate("uniform", "olmoe-1b-7b", ranks=8, tokens_per_rank=8192, layers=8)
    tracegen.write(trace, path)
    return path, trace


def bytes_read(path, **part):
    with CountedFile(path, "rb") as source, tracegen.open(source) as file:
        trace = file.read(**part)
        return source.bytes_read, trace


def test_opening_reads_the_header_and_not_the_body(large_file):
    path, _ = large_file
    with CountedFile(path, "rb") as source, tracegen.open(source) as file:
        assert file.num_tokens == 65536
        assert file.load_per_expert.sum() == 8 * 65536 * 8
        assert source.bytes_read < 0.05 * path.stat().st_size


def test_part_of_a_trace_costs_part_of_the_bytes(large_file):
    path, trace = large_file
    whole, _ = bytes_read(path)
    one_layer, part = bytes_read(path, layers=[3])
    np.testing.assert_array_equal(part.expert_ids[0], trace.expert_ids[3])
    one_chunk, part = bytes_read(path, layers=[3], tokens=slice(9000, 9100))
    np.testing.assert_array_equal(part.expert_ids[0], trace.expert_ids[3, 9000:9100])
    # One of eight layers; one of eight chunks of it (and the token columns, the header).
    assert one_layer < 0.25 * whole
    assert one_chunk < 0.12 * whole


def test_an_existing_file_is_replaced_only_on_request(tiny, tiny_file):
    before = tiny_file.read_bytes()
    with pytest.raises(UserError, match="exists"):
        tracegen.write(tiny, tiny_file)
    assert tiny_file.read_bytes() == before
    tracegen.write(tiny, tiny_file, overwrite=True)


def test_a_failed_write_leaves_the_old_file_and_no_other(tiny, tiny_file, monkeypatch):
    before = tiny_file.read_bytes()

    def disk_full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(h5py.Group, "create_dataset", disk_full)
    with pytest.raises(UserError, match="No space left"):
        tracegen.write(tiny, tiny_file, overwrite=True)
    assert tiny_file.read_bytes() == before
    assert list(tiny_file.parent.iterdir()) == [tiny_file]


def test_an_invalid_trace_is_not_written(changed, tmp_path):
    ids = np.zeros((2, 5, 2), np.uint8)
    with pytest.raises(UserError, match="layer 1, row 0: expert 0 is there twice"):
        tracegen.write(changed(expert_ids=ids), tmp_path / "bad.h5")
    assert not list(tmp_path.iterdir())


def test_the_same_trace_gives_the_same_bytes(tiny, tmp_path):
    for name in ("a.h5", "b.h5"):
        tracegen.write(tiny, tmp_path / name)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_part_of_a_trace_written_again_has_its_own_identity(tiny_file, tmp_path):
    part = tracegen.load(tiny_file, layers=[1])
    digest = tracegen.write(part, tmp_path / "part.h5")
    assert digest == part.content_id != part.stored_content_id
    again = tracegen.load(tmp_path / "part.h5")
    assert again.content_id == digest
    assert again.info.trace_id != part.info.trace_id


def test_a_trace_copied_unchanged_keeps_its_identity(tiny, tmp_path):
    named = dataclasses.replace(tiny, info=dataclasses.replace(tiny.info, trace_id="given"))
    tracegen.write(named, tmp_path / "a.h5")
    tracegen.write(tracegen.load(tmp_path / "a.h5"), tmp_path / "b.h5")
    assert tracegen.load(tmp_path / "b.h5").info == tracegen.load(tmp_path / "a.h5").info
    assert tracegen.load(tmp_path / "b.h5").info.trace_id == "given"


def test_errors_in_part_of_a_file_name_rows_of_the_file(tiny_file):
    with h5py.File(tiny_file, "r+") as file:
        file["routing/expert_ids"][1, 3] = [2, 2]
    assert tracegen.load(tiny_file, layers=[1], tokens=slice(0, 3)).num_tokens == 3
    with pytest.raises(UserError, match="layer 3, row 3: expert 2 is there twice"):
        tracegen.load(tiny_file, layers=[1], tokens=slice(2, 5))


def test_an_altered_file_is_refused_where_all_of_it_is_read(tiny_file):
    before = tracegen.load(tiny_file)
    with h5py.File(tiny_file, "r+") as file:
        file["tokens/position"][0] = 9
    with pytest.raises(UserError, match=r"content does not match content_sha256"):
        tracegen.load(tiny_file)
    # Part of it is known by what it is, not by what the file says of itself.
    part = tracegen.load(tiny_file, layers=[0])
    assert part.stored_content_id == before.content_id
    assert part.content_id != before.content_id


def test_a_trace_is_known_by_what_it_holds(tiny_file):
    whole = tracegen.load(tiny_file)
    parts = [
        tracegen.load(tiny_file, layers=[0]),
        tracegen.load(tiny_file, layers=[1]),
        tracegen.load(tiny_file, tokens=slice(0, 3)),
        dataclasses.replace(whole, gate_weights=None),
    ]
    assert len({one.content_id for one in [whole, *parts]}) == 5
    all_of_it = tracegen.load(tiny_file, layers=range(whole.num_layers))
    assert all_of_it.content_id == whole.content_id


def test_a_changed_trace_does_not_keep_its_old_identity_on_disk(tiny_file, tmp_path):
    trace = tracegen.load(tiny_file)
    model = dataclasses.replace(trace.model, hidden_size=32)
    digest = tracegen.write(dataclasses.replace(trace, model=model), tmp_path / "other.h5")
    assert digest != trace.content_id
    assert tracegen.library.verify(tmp_path / "other.h5") == digest


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"layers": [2]}, r"layers \[2\] must ascend within 0 to 1"),
        ({"layers": [-1]}, "must ascend within 0 to 1"),
        ({"layers": [1, 0]}, "must ascend"),
        ({"layers": [0, 0]}, "must ascend"),
        ({"tokens": slice(0, 4, 2)}, "without stride"),
        ({"max_bytes": 10}, "raise max_bytes"),
    ],
)
def test_parts_that_do_not_exist_are_refused(tiny_file, part, message):
    with pytest.raises(UserError, match=message):
        tracegen.load(tiny_file, **part)


def test_big_endian_columns_are_read_as_numbers(tiny_file, tiny, same):
    with h5py.File(tiny_file, "r+") as file:
        for path in ("tokens/step", "tokens/rank", "requests/arrival", "routing/gate_weights"):
            data, attributes = file[path][...], dict(file[path].attrs)
            del file[path]
            file[path] = data.astype(data.dtype.newbyteorder(">"))
            for name, value in attributes.items():
                file[path].attrs[name] = value
    trace = tracegen.load(tiny_file)
    same(trace, tiny)
