"""The trace in memory: its graph, its views, and what it refuses to be."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegen
from tracegen import ModelShape, RequestTable, TraceModel, UserError
from tracegen.generate import generate


def test_arrays_cannot_be_changed(tiny):
    for array in (tiny.expert_ids, tiny.gate_weights, tiny.tokens.step, tiny.requests.id):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_empty_slots_become_minus_one(tiny):
    assert tiny.layer_ids(0).tolist() == [[4, 0], [1, 5], [2, -1], [0, 4], [3, 1]]
    assert tiny.layer_ids(0).dtype == np.int32
    assert tiny.empty_slot == 255


def test_counts(tiny):
    assert (tiny.num_layers, tiny.num_tokens, tiny.topk) == (2, 5, 2)
    assert (tiny.num_experts, tiny.num_steps, tiny.num_ranks) == (6, 2, 2)
    assert tiny.load_per_expert()[0].tolist() == [2, 2, 1, 1, 2, 1]


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), layer=st.integers(0, 1), step=st.integers(0, 2), drop=st.booleans())
def test_the_graph_of_a_step_holds_every_edge_once_in_order(seed, layer, step, drop):
    trace = generate("zipf", "olmoe-1b-7b", ranks=2, tokens_per_rank=7, layers=2, steps=3, seed=seed)
    if drop:
        ids = trace.expert_ids.copy()
        ids[np.random.default_rng(seed).random(ids.shape) < 0.3] = trace.empty_slot
        trace = dataclasses.replace(trace, expert_ids=ids)
    rows = trace.step_rows(step)
    edges = []
    for token in range(rows.start, rows.stop):
        for slot, expert in enumerate(trace.layer_ids(layer)[token].tolist()):
            if expert >= 0:
                edges.append((expert, token, slot))
    dag = trace.dag(layer, step)
    experts = np.repeat(np.arange(trace.num_experts), np.diff(dag.indptr))
    found = list(zip(experts.tolist(), dag.tokens.tolist(), dag.slots.tolist(), strict=True))
    assert found == sorted(edges)
    graph = trace.to_networkx(layer, step)
    assert graph.number_of_edges() == len(edges)
    for expert, token, slot in edges:
        edge = graph.edges[("token", layer, token), ("expert", layer, expert, step)]
        assert edge["slot"] == slot


def test_the_drawn_graph_carries_weights_and_tokens_without_experts(changed):
    ids = np.full((2, 5, 2), 255, np.uint8)
    ids[0, 3, 1] = 2
    graph = changed(expert_ids=ids).to_networkx(0, 1)
    assert set(graph.nodes) == {("token", 0, 3), ("token", 0, 4), ("expert", 0, 2, 1)}
    assert graph.edges[("token", 0, 3), ("expert", 0, 2, 1)] == {"slot": 1, "weight": 0.25}


def test_a_large_step_is_not_drawn():
    trace = generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=4096, layers=1)
    with pytest.raises(UserError, match=r"has 32768 edges; to_networkx is for"):
        trace.to_networkx(0, 0)


@pytest.mark.parametrize("method", ["dag", "to_networkx"])
@pytest.mark.parametrize(("layer", "step"), [(2, 0), (-1, 0), (0, 2), (0, -1)])
def test_layers_and_steps_that_do_not_exist(tiny, method, layer, step):
    with pytest.raises(UserError, match="does not exist; the trace has"):
        getattr(tiny, method)(layer, step)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_ids": np.zeros((2, 5, 2), np.uint16)}, "expert_ids is uint16"),
        ({"expert_ids": np.zeros((5, 2), np.uint8)}, "must be (layer, token, k)"),
        ({"gate_weights": np.zeros((2, 5, 2), np.float32)}, "gate_weights is float32"),
        ({"flags": np.zeros((2, 4), np.uint8)}, "flags is uint8 (2, 4)"),
        ({"tokens_rank": np.zeros(4, np.uint16)}, "tokens.rank is uint16 (4,)"),
        ({"tokens_step": np.zeros(5, np.int64)}, "tokens.step is int64"),
        ({"moe_layer_index": np.zeros(3, np.uint16)}, "moe_layer_index is uint16 (3,)"),
        ({"steps_indptr": np.zeros(0, np.uint64)}, "at least one entry"),
        ({"model": TraceModel(num_experts=6, top_k=3, hidden_size=1)}, "2 slots per token"),
        ({"model": TraceModel(num_experts=65535, top_k=2, hidden_size=1)}, "possible are 1 to"),
        ({"requests": RequestTable(label=np.array([b"a"]))}, "requests.label must hold text"),
        ({"requests": RequestTable(label=np.array(["a\0b"]))}, "row 0: contains a zero"),
        (
            {"requests": RequestTable(id=np.zeros(1, np.uint32), label=np.array(["a", "b"]))},
            "columns of requests differ in length",
        ),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused_at_once(changed, fields, message):
    with pytest.raises(UserError) as refusal:
        changed(**fields)
    assert message in str(refusal.value)


def test_validation_names_the_first_offender(changed, tiny):
    ids = tiny.expert_ids.copy()
    ids[1, 4] = [3, 3]
    ids[1, 2] = [200, 0]
    with pytest.raises(UserError, match="layer 3, row 2, slot 0: expert 200 does not exist"):
        changed(expert_ids=ids).validate()
    both_empty = tiny.expert_ids.copy()
    both_empty[0, 0] = 255
    changed(expert_ids=both_empty).validate()


def test_the_content_id_tells_meanings_apart_and_nothing_else(tiny, changed):
    same = dataclasses.replace(tiny.info, title="Another", license="", provenance={}, created_utc="", kind="captured")
    assert changed(info=same).content_id == tiny.content_id
    scaled = [dataclasses.replace(tiny.model, routed_scaling_factor=f) for f in (2, 2.0)]
    assert changed(model=scaled[0]).content_id == changed(model=scaled[1]).content_id
    ids = tiny.expert_ids.copy()
    ids[0, 0] = ids[0, 0, ::-1]
    others = [
        changed(expert_ids=ids),
        changed(gate_weights=None),
        changed(tokens_rank=None),
        changed(requests=RequestTable()),
        changed(model=dataclasses.replace(tiny.model, hidden_size=17)),
        changed(info=dataclasses.replace(tiny.info, slot_order="native")),
        changed(moe_layer_index=np.array([1, 4], np.uint16)),
    ]
    assert len({trace.content_id for trace in [tiny, *others]}) == 1 + len(others)


def test_the_shape_of_the_model_is_found_by_what_the_trace_says(tiny):
    assert tracegen.load("gpt-oss-20b-decode", layers=[0]).model_shape.moe_intermediate == 2880
    with pytest.raises(UserError, match="the catalogue does not know 'tiny'"):
        _ = tiny.model_shape
    nameless = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, model_id=""))
    with pytest.raises(UserError, match=r"does not say which model .*6 experts, top-2, hidden 16"):
        _ = nameless.model_shape  # papers' shapes have no checkpoint either, and are not meant


def sized(trace, shape, **changes):
    """Give a trace the sizes of a shape, and no shape."""
    sizes = {"num_experts": shape.num_experts, "top_k": shape.topk, "hidden_size": shape.hidden}
    ids = np.tile(np.arange(shape.topk), (*trace.expert_ids.shape[:2], 1))
    return dataclasses.replace(
        trace,
        model=TraceModel(**{**sizes, **changes}),
        expert_ids=ids.astype(tracegen.trace.tables.expert_dtype(shape.num_experts)),
        gate_weights=None,
        stored_content_id="",
    )


def test_a_shape_is_that_of_the_trace_or_refused(tiny):
    shape = tracegen.models.load("qwen3-30b-a3b")
    trace = sized(tiny, shape)
    whole = trace.with_shape(shape)
    assert whole.model_shape == shape and whole.with_shape(shape) is whole
    named = sized(tiny, shape, model_id="Qwen/Qwen3-30B-A3B")
    assert named.model_shape == shape and named.with_shape(shape) is named
    wrong = {
        "experts 128 .not 64": {"num_experts": 64},
        "experts per token 8 .not 4": {"topk": 4},
        "hidden size 2048 .not 1024": {"hidden": 1024},
        "zero experts 0 .not 2": {"num_zero_experts": 2},
        "routing of decoder layer 3": {"dense_layers": (3,)},
        "routing of decoder layer 3,": {"num_layers": 3},
    }
    for said, sizes in wrong.items():
        other = ModelShape(**{**shape.sizes(), **sizes})
        with pytest.raises(UserError, match=f"the trace is not of qwen3-30b-a3b: it has {said}"):
            trace.with_shape(other)
    with pytest.raises(UserError, match=r"inner width of an expert 768 .not 1"):
        whole.with_shape(shape.model_copy(update={"moe_intermediate": 1}))
    lying = sized(tiny, shape, model_id="openai/gpt-oss-20b")
    with pytest.raises(UserError, match="the trace is not of gpt-oss-20b: it has experts 128"):
        _ = lying.model_shape


def test_importing_the_package_imports_nothing_heavy():
    script = (
        "import sys, tracegen, tracegen.cli; tracegen.RoutingTrace; tracegen.models.names();"
        "print({'h5py', 'networkx', 'numba', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_how_weights_are_read_is_said_of_weights_alone() -> None:
    """Else the file could be written, and not be read: it would have another identity."""
    made = tracegen.load("toy-zipf", layers=[0])
    for name in ("weight_semantics", "weight_row_sum"):
        info = dataclasses.replace(made.info, **{name: "softmax"})
        with pytest.raises(UserError, match="describe gate_weights, which are not given"):
            dataclasses.replace(made, info=info, gate_weights=None).validate()
