"""Data-parallel runs of two ranks each: every rank has its own prompts, all write the shared trace.

Loading torch and the model takes seconds, so all ranks are forked from one process that has them.
Usage: rank_worker.py FOLDER...    A folder is named after its mode and takes the trace ``a.h5``.
"""

import multiprocessing
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import tiny_families  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import tracegen  # noqa: E402

SIZE = 2


def capture(folder: Path, rank: int) -> None:
    mode = folder.name
    os.environ["RANK"] = str(rank)
    if mode == "gloo":
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=SIZE)
    else:
        os.environ["WORLD_SIZE"] = str(SIZE)
    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(4, tiny_families.VOCAB, (2, 5 + rank), generator=generator)
    with tracegen.capture(model, folder / "a.h5"):
        model.generate(input_ids=ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    if mode == "gloo":
        dist.destroy_process_group()


torch.set_num_threads(1)
model = tiny_families.tiny_model("mixtral")
forking = multiprocessing.get_context("fork")
ranks = [forking.Process(target=capture, args=(Path(folder), rank)) for folder in sys.argv[1:] for rank in range(SIZE)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
sys.exit(any(process.exitcode for process in ranks))
