import json
import pickle
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from loops import every

import hwmodel
from hwmodel import Capability, UserError, catalog
from hwmodel.catalog import load_spec
from hwmodel.specs import keys, sections
from hwmodel.units import unit_of

PRESETS = hwmodel.names()


def written(text, tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text(text, "utf-8")
    return path


def test_presets():
    assert [
        *(
            "atlas-800t-a2",
            "aws-p5",
            "cloudmatrix384",
            "dgx-a100",
            "dgx-h100",
            "dgx-h100-x2",
            "dgx-h100-x4",
            "dgx-h100-x8",
        ),
        *("gb200-nvl72", "gh200-nvl32"),
        *("hgx-b200", "hgx-h20", "hgx-h200", "hgx-h800", "mi300x", "mi355x", "pcie-l20"),
    ] == PRESETS


@every("name", PRESETS)
def test_every_value_of_a_preset_has_a_source(name):
    spec = load_spec(name)
    rows = spec.rows()
    assert [row[0] for row in rows] == spec.present()
    assert spec.name == name and spec.summary
    for key, _, unit, source, confidence in rows:
        assert len(source) > 8, key
        assert confidence in {"high", "medium", "low", "recalled"}
        assert unit == unit_of(key)


def test_a_preset_says_only_what_exists():
    text = (resources.files("hwmodel.presets") / "dgx-h100.toml").read_text("utf-8")
    document = tomllib.loads(text)
    tables = {key for key, value in document.items() if isinstance(value, dict)}
    assert tables == set(sections()) - {"ai_core", "mesh", "groups"}


def test_dimensional_keys_name_their_unit():
    dimensionless = (
        *("num_", "links_per", "efficiency", "multicast", "reduction", "copy_engine", "virtual"),
        *(
            "flits_per_channel",
            "mma_rows",
            "tile_rows",
            "tile_keys",
            "cluster_tiles",
            "accumulators",
            "fp4_kinds",
            "scale_block",
            "blocks",
            "whole_tiles",
            "dynamic_multicast",
            "channels",
            "vector_cores",
            "slices",
            "kept_share",
            "exposed_exponentials",
            "rank_order",
            "rails",
            "per_leaf",
            "oversubscription",
            "fabric.slow",
            "host.",
            "sm.register",
            "sm.partitions",
            "sm.threads",
        ),
    )
    for key in keys():  # of all tables, those that not every machine has too
        assert unit_of(key) or any(word in key for word in dimensionless), key


def test_overrides_are_typed_text():
    from_text = hwmodel.load("dgx-h100", {"link.links_per_gpu": "8", "switch.reduction": "false"})
    assert from_text.describe() == (
        hwmodel.load("dgx-h100", {"link.links_per_gpu": 8, "switch.reduction": False}).describe()
    )
    assert Capability.REDUCTION not in from_text.capabilities


def test_an_h800_is_an_h100_with_eight_links():
    by_hand = hwmodel.load(
        "dgx-h100",
        {"link.links_per_gpu": 8, "nccl.ring_channels": 16, "nccl.pair_channels": 16},
    ).describe()
    assert by_hand | {"name": "hgx-h800"} == hwmodel.load("hgx-h800").describe()


@every(
    ("links", "planes"),
    [(18, [5, 5, 4, 4]), (8, [2, 2, 2, 2]), (6, [2, 2, 1, 1]), (2, [1, 1])],
)
def test_links_without_a_placement_are_spread_evenly(links, planes):
    described = hwmodel.load("dgx-h100", {"link.links_per_gpu": links}).describe()
    assert described["fabric.links_per_plane"] == planes


def test_planes_alone_say_how_many_links():
    system = hwmodel.load("dgx-h100", {"fabric.links_per_plane": "[3, 3]"})
    assert system.link.links_per_gpu == 6
    source = {key: source for key, _, _, source, _ in system.spec.rows()}
    assert source["link.links_per_gpu"] == "sum of fabric.links_per_plane (override)"


def test_a_machine_that_does_not_exist():
    system = hwmodel.load("dgx-h100", {"fabric.num_gpus": 32})
    assert (system.num_gpus, system.fabric.num_domains) == (32, 1)


def test_descriptions_are_plain_sorted_and_complete():
    system = hwmodel.load("gh200-nvl32", {"hbm.peak_GB_per_s": 8000}, num_gpus=16)
    described = system.describe()
    assert list(described) == sorted(described)
    assert set(described) == {*system.spec.present(), "name", "num_gpus"}
    assert json.loads(json.dumps(described)) == described
    assert described["num_gpus"] == 16
    assert described["hbm.peak_GB_per_s"] == 8000
    assert described["fabric.num_gpus"] == 32


def test_capabilities():
    assert hwmodel.load("dgx-h100").capabilities == {
        Capability.MULTICAST,
        Capability.REDUCTION,
        Capability.COPY_ENGINE,
        Capability.CUDA,
    }
    assert Capability.DYNAMIC_MULTICAST in hwmodel.load("gh200-nvl32").capabilities
    two = hwmodel.load("dgx-h100", {"fabric.num_domains": 2})
    assert Capability.SCALE_OUT in two.capabilities
    # One node of two is one node.
    one = hwmodel.load("dgx-h100", {"fabric.num_domains": 2}, num_gpus=8)
    assert Capability.SCALE_OUT not in one.capabilities


@every(
    ("name", "overrides", "said"),
    [
        (
            "dgx-h10",
            {},
            r"unknown system 'dgx-h10' \(did you mean 'dgx-h100'\?\); known: .*; or the path",
        ),
        ("dgx-h100", {"link.links_per_gp": 8}, "did you mean 'link.links_per_gpu'"),
        ("dgx-h100", {"links_per_gpu": 8}, "did you mean 'link.links_per_gpu'"),
        ("dgx-h100", {"nonsense": 8}, "unknown key 'nonsense'; .*tables: fabric, link"),
        ("dgx-h100", {"link.propagation_us": 8}, "unknown key.*did you mean 'link.propagation_ns'"),
        ("dgx-h100", {"link.links_per_gpu": "8.5"}, "link.links_per_gpu: .*integer; got 8.5"),
        ("dgx-h100", {"link.links_per_gpu": 0}, "link.links_per_gpu: .*got 0"),
        ("dgx-h100", {"link.efficiency": 1.5}, "link.efficiency: .*less than or equal to 1"),
        ("dgx-h100", {"hbm.latency_ns": "nan"}, "hbm.latency_ns: .*finite"),
        ("dgx-h100", {"hbm.peak_GB_per_s": "fast"}, "hbm.peak_GB_per_s=fast is not a number"),
        ("dgx-h100", {"hbm.peak_GB_per_s": "9" * 30}, "peak_GB_per_s: 9.* of more than 64 bits"),
        ("dgx-h100", {"switch.multicast": 1}, "switch.multicast: .*boolean; got 1"),
        ("dgx-h100", {"compute.bf16_blocks": "[[128]]"}, "compute.bf16_blocks: .*2 items"),
        ("dgx-h100", {"fabric.links_per_plane": "[]"}, "fabric.links_per_plane: .*1 item"),
        (
            "dgx-h100",
            {"fabric.rank_order": "robin"},
            "rank_order=robin is not by node",
        ),
        ("dgx-h100-x2", {"network.oversubscription": 0.5}, "oversubscription: .*equal to 1"),
        *(
            (
                "dgx-h100-x2",
                {"fabric.slow": [line]},
                f"slow: '{line}' is not a part",
            )
            for line in ("nic 16 = 0.5", "leaf 8 = 0", "nic 3", "nic 3 = 1.5", "card 1 = 0.5", "")
        ),
        ("dgx-h100", {"fabric.slow": ["gpu 1 = 0"]}, "'gpu 1 = 0' leaves a GPU no way to others"),
        ("dgx-h100-x2", {"fabric.slow": ["nic 1 = 0", "nic 1 = 1"]}, "'nic 1' is there twice"),
    ],
)
def test_mistakes_are_named_with_what_is_possible(name, overrides, said):
    with pytest.raises(UserError, match=said):
        hwmodel.load(name, overrides)


@every("wanted", [0, -1, 9])
def test_more_gpus_than_there_are(wanted):
    with pytest.raises(UserError, match=f"dgx-h100 has 8 GPUs; {wanted} were asked for"):
        hwmodel.load("dgx-h100", num_gpus=wanted)


def test_the_larger_preset_is_named():
    with pytest.raises(UserError, match="gh200-nvl32 has 32"):
        hwmodel.load("dgx-h100", num_gpus=16)
    with pytest.raises(UserError, match="the largest preset has 768"):
        hwmodel.load("dgx-h100", num_gpus=1000)


@every(("base", "count"), [("dgx-h100", 1), ("hgx-h800", 3), ("gb200-nvl72", 8)])
def test_a_name_says_how_many_nodes(base, count):
    one, several = load_spec(base), load_spec(f"{base}-x{count}")
    assert several.name == f"{base}-x{count}"
    assert several.fabric.num_domains.value == count
    changed = {"fabric.num_domains"} if count > 1 else set()
    values = [{row[0]: row[1] for row in spec.rows()} for spec in (one, several)]
    assert {key for key in values[0] if values[0][key] != values[1][key]} == changed
    assert hwmodel.load(f"{base}-x{count}").num_gpus == count * one.fabric.num_gpus.value


@every("count", ["0", "01", "8193", "99999999", "00000000002"])
def test_a_number_of_nodes_that_is_none(count):
    said = rf"system 'dgx-h100-x{count}': N of dgx-h100-xN is a number of nodes, 1 to 8192"
    with pytest.raises(UserError, match=said) as raised:
        hwmodel.load(f"dgx-h100-x{count}")
    assert "\n" not in str(raised.value)


@every("name", ["dgx-h100-x", "dgx-h100-x2-x2", "dgx-h100-x-2", "nothing-x2", "-x2"])
def test_names_that_repeat_nothing(name):
    with pytest.raises(UserError, match="unknown system"):
        hwmodel.load(name)


def test_a_file_over_several_nodes(tmp_path):
    path = written('base = "hgx-h800-x4"\nname = "pods"', tmp_path)
    assert hwmodel.load(path).num_gpus == 32


def test_a_file_over_a_base(tmp_path):
    path = written(
        """
        base = "hgx-h800"
        name = "pods"
        [fabric]
        num_domains = { value = 4, source = "invented for this test", confidence = "low" }
        [nic]
        bandwidth_GB_per_s = { value = 100, source = "invented for this test", confidence = "low" }
        """,
        tmp_path,
    )
    system = hwmodel.load(path)
    assert (system.name, system.num_gpus) == ("pods", 32)
    assert system.link.links_per_gpu == 8
    assert system.fabric.route(0, 24) == ("gpu0", "nic0", "leaf0", "nic24", "gpu24")
    assert system.fabric.network.nic.units_per_second == pytest.approx(95e9)
    assert hwmodel.load(str(path), num_gpus=8).fabric.num_domains == 1


def test_a_file_that_changes_the_links_alone(tmp_path):
    path = written(
        """
        base = "dgx-h100"
        [link]
        links_per_gpu = { value = 12, source = "an A100's number", confidence = "low" }
        """,
        tmp_path,
    )
    assert hwmodel.load(path).fabric.links_of(0) == (3, 3, 3, 3)


def test_a_base_that_leads_back_to_itself(monkeypatch):
    monkeypatch.setattr(catalog, "_read", lambda name: (str(name), {"base": "dgx-h100"}))
    with pytest.raises(UserError, match="base 'dgx-h100' leads back to itself"):
        catalog.load_spec("dgx-h100")


@given(st.sampled_from(keys()), st.sampled_from([0, 1e-300, 1e-3, 1, 1e9, 1e300, -1, 2**80]))
@example("link.bandwidth_GB_per_s", 1e-3)
@example("compute.fp8_peak_TFLOP_per_s", 1e9)
@example("compute.multiplication_clocks", 1e-300)
def test_absurd_numbers_are_refused_or_work(key, value):
    try:
        system = hwmodel.load("dgx-h100", {key: value})
    except UserError:
        return
    nbytes = np.array([0, 1, 10**12])
    wire = system.link.write_wire_bytes(np.array([0, 1, 10**9]))
    for durations in (
        system.link.port_duration_ps(wire),
        system.switch.multimem_duration_ps(wire),
        system.hbm.stream_ps(nbytes),
        system.sm.push_ps(nbytes),
        system.compute.tile_ps(np.array([0, 1, 128]), 256, 8192, "fp8"),
    ):
        assert durations[0] == 0 <= durations[1] <= durations[2] < 2**62
    assert system.overheads.barrier_ps(8) >= 0


def test_a_system_travels_to_another_process():
    system = hwmodel.load("gh200-nvl32", {"link.efficiency": 0.9})
    again = pickle.loads(pickle.dumps(system))
    assert again.describe() == system.describe()
    assert again.link == system.link and again.capabilities == system.capabilities


def test_a_complete_file_needs_no_base(tmp_path):
    text = (resources.files("hwmodel.presets") / "dgx-h100.toml").read_text("utf-8")
    path = written(text.replace('"dgx-h100"', '"mine"'), tmp_path)
    described = hwmodel.load(path).describe()
    assert described == hwmodel.load("dgx-h100").describe() | {"name": "mine"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base = ", "is not a TOML file"),
        (
            'base = "nowhere"',
            "unknown base 'nowhere'; known: atlas-800t-a2, aws-p5, cloudmatrix384",
        ),
        ('base = "dgx-h100"\nname = 3', "name must be text; got 3"),
        ('base = ["dgx-h100"]', r"base must be text; got \['dgx-h100'\]"),
        (
            'base = "dgx-h100"\n[lnk]\na = 1',
            r"unknown table or key 'lnk' \(did you mean 'link'\?\)",
        ),
        ('base = "dgx-h100"\nlink = 1', "unknown table or key 'link'"),
        ('base = "dgx-h100"\n[link]\nlinks_per_gpu = 8', "has no source; write links_per_gpu = "),
        (
            'base = "dgx-h100"\n[link]\nlinks_per_gpu = { value = 8, confidence = "low" }',
            "link.links_per_gpu: source is missing",
        ),
        (
            'base = "dgx-h100"\nnic.efficiency = {value=1.0, source="rumour", confidence="?"}',
            "nic.efficiency: .*'high'.*got '\\?'",
        ),
        ('name = "bare"\nsummary = ""', "fabric: is missing"),
    ],
)
def test_a_broken_file_says_where(text, said, tmp_path):
    path = written(text, tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        hwmodel.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_file_that_is_not_there():
    with pytest.raises(UserError, match=r"cannot read the system file nowhere\.toml"):
        hwmodel.load("nowhere.toml")
    with pytest.raises(UserError, match="cannot read"):
        hwmodel.load(Path())
    with pytest.raises(UserError, match="it has a NUL"):
        hwmodel.load("a\0b.toml")


@pytest.mark.extended
def test_importing_is_light():
    code = (
        "import sys, hwmodel; heavy = {'numpy', 'networkx', 'pydantic', 'numba', 'h5py'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "system = hwmodel.load('dgx-h100'); assert 'networkx' not in sys.modules;"
        "system.fabric.graph; assert 'networkx' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(hwmodel.__file__).parents[1])


def test_public_names_resolve():
    assert all(getattr(hwmodel, name) is not None for name in hwmodel.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hwmodel.nothing  # noqa: B018


def test_keys_of_older_files_and_overrides_have_no_effect(tmp_path):
    """`ai_core.row_read_efficiency` stood for what the steps of a core's reads are now."""
    present = hwmodel.load("cloudmatrix384")
    assert hwmodel.load("cloudmatrix384", {"ai_core.row_read_efficiency": 0.5}) == present
    file = tmp_path / "older.toml"
    file.write_text(
        'name = "cloudmatrix384"\nbase = "cloudmatrix384"\n\n[ai_core]\n'
        'row_read_efficiency = { value = 0.5, source = "", confidence = "low", spread = "exact" }\n'
    )
    assert hwmodel.load(file).ai_core == present.ai_core
    with pytest.raises(UserError, match=r"unknown key 'link\.row_read_efficiency'"):
        hwmodel.load("cloudmatrix384", {"link.row_read_efficiency": 0.5})
