"""Documents: results, specs, studies, spaces, systems, models, maps, requests, catalogues."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World

ROOT = Path(__file__).parents[3]
COMPARE = "compare toy-zipf --scheme ideal --scheme deepep --layer 0"
HERE = "run toy-zipf --scheme ideal --layer 0 --max-memory 2GB"


def ran(words: str) -> None:
    """Run a command that makes a sample."""
    import contextlib
    import io

    from replay.cli.app import main

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(words.split())
    except SystemExit as end:
        if end.code not in (0, 3):
            raise RuntimeError(f"{words}: {said.getvalue()}") from end


class Documents(Kind):
    """Files of text, one of which a command reads.

    Parameters
    ----------
    name
        Of the kind.
    samples
        Name of a sound file to its text, or to the words of a command that writes it, with ``{}``
        for the file. One whose name begins with ``_`` is never damaged.
    commands
        Words with ``{}`` for the damaged file, ``{other}`` for another sound one, and ``{shelf}``
        for the folder of all sound ones.
    """

    def __init__(
        self,
        name: str,
        samples: dict[str, str],
        commands: Sequence[str],
        *,
        share: float = 1.0,
        codes: tuple[int, ...] = (),
        keeps: bool = False,
    ) -> None:
        self.name, self.samples, self.commands = name, samples, commands
        self.share, self.codes, self.keeps = share, codes, keeps

    def prepare(self, shelf: Path) -> None:
        for name, content in self.samples.items():
            if "{}" in content.partition("\n")[0] and not content.startswith("{"):
                ran(content.format(shelf / name))
            else:
                (shelf / name).write_text(content)

    def case(self, rng: random.Random, world: World) -> Case:
        shelf = world.shelf / self.name
        paths = sorted(path for path in shelf.iterdir() if path.name[0] != "_")
        path, other = rng.choice(paths), rng.choice(paths)
        given = world.give(path.name, damage.file(path.read_bytes(), rng))
        sound = world.give(f"sound-{other.name}", other.read_bytes())
        words = rng.choice(self.commands).split()
        return Case([word.format(given, other=sound, shelf=shelf) for word in words], self.codes, self.keeps)


class Results(Documents):
    """Results of all kinds, with those of earlier versions."""

    def prepare(self, shelf: Path) -> None:
        super().prepare(shelf)
        for path in (ROOT / "tests/data/results").glob("*.json"):
            shutil.copy(path, shelf)


class Catalogues(Kind):
    """Folders of catalogues, with a trace in them."""

    name = "catalogues"

    def prepare(self, shelf: Path) -> None:
        ran(f"trace generate zipf --model olmoe-1b-7b --ranks 2 --tokens-per-rank 4 --layers 2 --out {shelf / 'a.h5'}")
        ran(f"trace publish {shelf / 'cat'} {shelf / 'a.h5'} --title T --creator C --description D")
        (shelf / "a.h5").unlink()

    def case(self, rng: random.Random, world: World) -> Case:
        # Its commands may change it: it lies where outputs do.
        folder = world.out / "cat"
        shutil.copytree(world.shelf / self.name / "cat", folder)
        names = sorted(path for path in folder.rglob("*") if path.is_file())
        path = rng.choice([one for one in names if one.suffix != ".h5"] * 4 + names)
        path.write_bytes(damage.file(path.read_bytes(), rng, is_text=path.suffix != ".h5"))
        words = rng.choice(
            [
                "trace list --catalogue {}",
                "trace list --catalogue {} --json",
                "trace fetch a --catalogue {}",
                "trace fetch a --catalogue {} --out out/fetched",
                "trace add {} toy-zipf --name b",
                "trace add {} toy-zipf --name a --force",
                "trace publish {} toy-zipf --title T --creator C --force",
            ]
        )
        return Case(words.format("out/cat").split())


SPEC = """
trace = "toy-zipf"
layer = 0
scheme = "deepep"
system = "dgx-h100"
placement = "contiguous"
precision = "bf16"
tune = false
options = { num_sms = 20 }
overrides = { "link.efficiency" = 0.9 }
"""
STUDY = """
title = "A study"
question = "Who made it?"
seeds = [0, 1]
across = "scheme"
[fixed]
system = "dgx-h100"
ranks = 2
tokens_per_rank = 4
tune = false
trace.kind = "zipf"
trace.skew = 0.8
trace.model = "olmoe-1b-7b"
[axes]
scheme = ["ideal", { label = "wide rows", scheme = "comet", comet.message_rows = 16 }]
placement = ["contiguous", "round-robin"]
"""
SPACE = """
model = "olmoe-1b-7b"
sequence = 512
sequences = 16
[[systems]]
system = "dgx-h100"
scheme = "deepep"
[shape]
num_layers = "12..16 step 4"
hidden = [1536]
num_experts = [32]
topk = [4, 8]
[plan]
ep = [8]
pp = [1, 2]
"""
CONFIG = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "norm_topk_prob": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "rope_theta": 1e4,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_group": 4,
    "vocab_size": 129280,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "quantization_config": {"quant_method": "fp8"},
}
INFER = "infer --model olmoe-1b-7b --decode-gpus 2 --sample-layers 1 --scheme deepep-ll"
GENERATE = "--model olmoe-1b-7b --ranks 2 --tokens-per-rank 4 --layers 2 --out out/g.h5"
REPORTS = ["report {} --html out/p.html"] * 3 + [
    "report {} --tables out/t",
    "report {} {other} --html out/p.html",
]
REPLAYS = {
    "layer.json": "run toy-zipf --scheme deepep --layer 0 --json {}",
    "other.json": "run toy-zipf --scheme ideal --layer 0 --json {}",
    "compared.json": f"{COMPARE} --json {{}}",
    "chain.json": "run toy-zipf --scheme nccl-alltoall --json {}",
}


def _model(name: str) -> str:
    return (ROOT / "tracegen/models" / f"{name}.toml").read_text("utf-8")


def _preset(name: str) -> str:
    return (ROOT / "hwmodel/presets" / f"{name}.toml").read_text("utf-8")


KINDS: list[Kind] = [
    Documents(
        "replays",
        REPLAYS,
        [
            "diff {} {other} --json out/d.json",
            "diff {other} {} --html out/d.html",
            "diff {} {}",
            "explain {} {other} --json out/e.json",
            "explain ideal deepep {}",
            "run --spec {} --dry-run",
            "run --spec {} --max-memory 2GB",
            "report {} {other} --html out/p.html",
        ],
        share=2,
    ),
    Results(
        "results",
        {
            "training.json": "train --model olmoe-1b-7b --plan pp=2,dp=2,ep=2,micro_batches=2 "
            "--sequence 64 --layers-sampled 1 --scheme ideal --scheme deepep --json {}",
            "batch.json": f"{INFER} --requests 4 --prompt 32 --output 2 --json {{}}",
            "serving.json": f"{INFER} --arrivals 50 --count 9 --prompts 32 --outputs 4 --json {{}}",
            "tensor.json": "tensor compare --tp 4 --layers 1 --tokens 64 --scheme cais --json {}",
            "collective.json": "collective --bytes 1M,4M --json {}",
            "place.json": "place toy-zipf --json {}",
            "drawn.json": f"{COMPARE} --uncertainty 2 --json {{}}",
            "explain.json": "explain deepep nccl-alltoall toy-zipf --layer 0 --json {}",
        },
        REPORTS,
        share=3,
    ),
    Documents(
        "specs",
        {"spec.toml": SPEC, "spec.json": "run toy-zipf --scheme ideal --layer 0 --json {}"},
        ["run --spec {} --dry-run", "run --spec {} --max-memory 2GB --json out/r.json"],
    ),
    Documents(
        "studies",
        {"study.toml": STUDY},
        ["sweep {} --dry-run", "sweep {} -o out/s", "sweep {} -o out/s --json out/s.json"],
        codes=(3,),
        keeps=True,
    ),
    Documents(
        "spaces",
        {"space.toml": SPACE},
        ["choose {} --dry-run", "choose {} --dry-run --top 2", "choose {} -o out/c --most 2"],
        keeps=True,
        codes=(3,),
    ),
    Documents(
        "systems",
        {f"{name}.toml": _preset(name) for name in ("dgx-h100", "gb200-nvl72", "pcie-l20", "atlas-800t-a2")},
        [
            "hardware show {}",
            "hardware show {} --json",
            "hardware diff {} dgx-h100",
            HERE + " --system {} --json out/r.json",
            "collective --bytes 1M --system {}",
        ],
    ),
    Documents(
        "models",
        {
            "model.toml": _model("olmoe-1b-7b"),
            "mla.toml": _model("deepseek-v2-lite"),
            "config.json": json.dumps(CONFIG),
            "deepseek.json": json.dumps(DEEPSEEK),
        },
        [
            "trace models {}",
            "trace models {} --json",
            "tensor models {}",
            "trace generate uniform --model {} --ranks 2 --tokens-per-rank 4 --out out/a",
            "train --model {} --plan dp=2,ep=2 --sequence 64 --scheme ideal --no-fit",
        ],
        share=1.5,
    ),
    Documents(
        "placements",
        {
            "sglang.json": "place toy-zipf --out {} --format sglang",
            "vllm.json": "place toy-zipf --out {} --format vllm --slots 72",
            "ascend.json": "place toy-zipf --out {} --format vllm-ascend",
            "tensorrt.yaml": "place toy-zipf --out {} --format tensorrt",
            "list.json": json.dumps([n % 8 for n in range(64)]),
        },
        [
            HERE + " --placement file:{}",
            "place toy-zipf --algorithm file --from {} --json out/p.json",
        ],
        share=1.5,
    ),
    Documents(
        "requests",
        {
            "plain.csv": "arrival_s,prompt,output\n0,32,2\n0.5,16,3\n1.5,64,1\n",
            "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,37,4\n"
            "2023-11-16 18:15:50.9951690,39,2\n",
            "mooncake.jsonl": '{"timestamp": 0, "input_length": 67, "output_length": 5}\n'
            '{"timestamp": 30, "input_length": 32, "output_length": 2, "hash_ids": [1]}\n',
        },
        [f"{INFER} --arrivals {{}}", f"{INFER} --arrivals {{}} --json out/i.json --count 2"],
    ),
    Documents(
        "parameters",
        {
            "latent-1.toml": (ROOT / "tests/data/formats/parameters/latent-1.toml").read_text("utf-8"),
            "_model.json": json.dumps({**CONFIG, "num_experts": 16, "num_experts_per_tok": 2}),
        },
        ["trace generate latent --option parameters={} --model {shelf}/_model.json --out out/g"],
        share=0.5,
    ),
    Documents(
        "histograms",
        {
            "rows.json": json.dumps([[*range(1, 65)], [*range(64, 0, -1)]]),
            "row.json": json.dumps([5] * 64),
        },
        [f"trace generate histogram --option load={{}} {GENERATE}"],
        share=0.5,
    ),
    Catalogues(),
]
