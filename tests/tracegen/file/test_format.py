"""FORMAT.md is true, and files of every version ever released are read."""

import doctest
import hashlib
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import tracegen

FORMATS = Path(__file__).parents[2] / "data" / "formats"
FORMAT_MD = Path(tracegen.__file__).parent / "file" / "FORMAT.md"
TINY_CONTENT = "55d2ba4cbabe3172e10dae5c07e3dc36d695ddf4c69d5f670dd1f5ba198ae4fd"


def test_the_transcript_of_the_format_document_runs(monkeypatch):
    monkeypatch.chdir(FORMATS / "v1.0")
    text = FORMAT_MD.read_text("utf-8")
    assert text.count(">>>") > 20
    failed, tried = doctest.testfile(str(FORMAT_MD), module_relative=False, encoding="utf-8")
    assert tried > 20
    assert not failed


def test_a_file_of_version_1_0_is_read_as_it_was_written(tiny, same):
    path = FORMATS / "v1.0" / "tiny.h5"
    assert tracegen.library.verify(path) == TINY_CONTENT
    trace = tracegen.load(path)
    same(trace, tiny)
    assert trace.info.weight_semantics == "softmax over the chosen experts"
    assert trace.info.provenance == {"tool": "by hand"}


def test_the_content_id_follows_from_the_document_alone():
    """An implementation from the text of FORMAT.md, on h5py and hashlib only."""
    absent = {
        **dict.fromkeys(("model_id", "revision", "model_type", "score_function"), ""),
        "num_shared_experts": 0,
        "num_zero_experts": 0,
        "act_dtype_bytes": 2,
        "norm_topk": True,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "expert_bias": False,
    }
    order = [
        *("model/moe_layer_index", "routing/expert_ids", "routing/gate_weights", "routing/flags"),
        *(f"tokens/{c}" for c in ("step", "request", "position", "phase", "rank", "token_id")),
        *(f"requests/{c}" for c in ("id", "prompt_len", "output_len")),
        *(f"requests/{c}" for c in ("dataset", "label", "arrival")),
    ]
    with h5py.File(FORMATS / "v1.0" / "tiny.h5") as file:
        model = {}
        for name, value in file["model"].attrs.items():
            plain = value.decode() if isinstance(value, bytes) else value.item()
            if plain != absent.get(name):
                model[name] = plain
        header = {
            "format": "moe-routing-trace/1",
            "model": model,
            "reading": {
                "slot_order": file["routing/expert_ids"].attrs["slot_order"].decode(),
                "weight_semantics": file["routing/gate_weights"].attrs["semantics"].decode(),
                "weight_row_sum": file["routing/gate_weights"].attrs["row_sum"].decode(),
            },
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
        sha = hashlib.sha256(len(text).to_bytes(8, "little") + text)
        for path in order:
            data = file[path][...]
            is_text = data.dtype.kind == "S"
            kind = "text" if is_text else f"{data.dtype.kind}{data.dtype.itemsize}"
            sha.update(f"{path} {kind} {','.join(map(str, data.shape))}\n".encode())
            sha.update(b"".join(s + b"\0" for s in data.tolist()) if is_text else data.tobytes())
        assert sha.hexdigest() == file.attrs["content_sha256"].decode() == TINY_CONTENT


@pytest.mark.parametrize("version", ["1.0.7", "1.9.0"])
def test_minor_versions_are_read_and_what_is_unknown_in_them_ignored(tiny_file, version, tiny, same):
    with h5py.File(tiny_file, "r+") as file:
        file.attrs["schema_version"] = np.bytes_(version)
        file.attrs["from_the_future"] = "unknown"
        file["model"].attrs["also_new"] = np.arange(3)
        file.create_group("dag")["indptr"] = np.arange(4)
        file["tokens/colour"] = np.arange(7)
    same(tracegen.load(tiny_file), tiny)
