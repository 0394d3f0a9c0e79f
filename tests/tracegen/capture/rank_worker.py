"""One rank of a data-parallel run: its own prompts, the shared trace."""

import sys
import warnings

warnings.simplefilter("ignore")
import tiny_families  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import tracegen  # noqa: E402

mode, rank, size, store, out = sys.argv[1:]
torch.set_num_threads(1)
if mode == "gloo":
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(size)
    )
model = tiny_families.tiny_model("mixtral")
generator = torch.Generator().manual_seed(int(rank))
ids = torch.randint(4, tiny_families.VOCAB, (2, 5 + int(rank)), generator=generator)
with tracegen.capture(model, out):
    model.generate(input_ids=ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
if mode == "gloo":
    dist.destroy_process_group()
