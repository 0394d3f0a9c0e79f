"""The words that stand over columns and beside bars, each explained in one line.

The table in the terminal, the report and the documentation show the same lines. Where a word means something
else elsewhere, it has a longer key: `word_column(name, word=key)`.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracegen.shared.display.content import Table

WORDS: dict[str, str] = {
    # ---- times ----
    "speed-up": "the baseline's time over this one",
    "first in": "share of the steps in which it is the fastest",
    "first of built": "the same among those that need no proposed hardware",
    "exposed": "communication and waiting that no computation hides; mean over the GPUs",
    "bound": "a time that no schedule of this work can beat",
    "bound/time": "how much of the time the bound explains",
    "binds": "what the bound is of: bytes of the busiest port, work of the SMs, bytes of memory or "
    "L2, or a chain of tasks that wait for one another",
    "weights read": "how often weights come from device memory, over each that is used once",
    "row tiles": "tiles of an expert's rows, in the mean over experts with rows and their GEMMs",
    "busy of a phase": "time in which something of the phase is in service somewhere",
    "mean of a chained layer": "from its beginning on a GPU to its end there, waiting included",
    # ---- what is waited for ----
    "wires": "a message leaves or reaches the GPU, or its SMs and memory copy rows",
    "imbalance": "nothing of the GPU's own is under way, and another GPU is busy",
    "latency of waiting": "no GPU is busy: barriers, flags, waits of hosts",
    "waiting": "as exposed, but an instant counts with the share of SMs that compute nothing",
    "unfilled": "that share while the GPU computes and nothing of its own is under way",
    "for L2": "SM time in which tiles wait for what they read from the L2 cache",
    "for HBM": "SM time in which tiles wait for what they read from memory",
    # ---- what lies on the critical path ----
    "critical path": "one chain of tasks that adds up to the time, with their queues",
    "compute": "work on a GPU's own data: products, activations, permutes",
    "serialisation": "a message on a port, for as long as its bytes take there",
    "copying": "what SMs and memory do for rows that travel",
    "overhead": "gaps, launches, barriers, flags and waits of hosts",
    "no phase": "gaps between kernels, launches of hosts, random delays",
    "gaps between kernels": "from a kernel's end to the next one's begin, and starts of blocks; hosts launch beside",
    "launches of hosts": "a host's thread calls kernels, and its GPU waits for that",
    "random delays": "a GPU is held up at the begin of a layer (--jitter)",
    "handing out tiles": "a scheduler in a kernel gives tiles to SMs",
    "starts of NCCL kernels": "from the start of a kernel of NCCL until its first chunk leaves",
    "barriers and flags": "software's own time for barriers, fences, flags and counts, without their messages",
    "waits of hosts": "a host reads a number of its GPU before it launches what follows",
    "queueing": "waiting for a resource that serves others",
    "latency": "a message on its way, or a kernel beside its bytes and operations, with no resource busy for it",
    "latency of messages": "a message on its way, with no resource busy for it",
    "latency of kernels": "a kernel beside its bytes and operations: its first loads, its last stores, no SM busy",
    "credits": "waiting for room in a buffer",
    "no SM": "blocks that wait for their turn while others have all SMs",
    "reads": "blocks that tiles read through the L2 cache or from memory",
    **{
        f"queueing behind {what}": f"waiting for a resource that serves others: {what}"
        for what in (
            "compute",
            "copying",
            "serialisation",
            "gaps between kernels",
            "launches of hosts",
            "random delays",
            "handing out tiles",
            "starts of NCCL kernels",
            "barriers and flags",
            "waits of hosts",
            "reads",
        )
    },
    "placement phase": "experts are placed for a layer, and weights copied",
    "layout phase": "kernels that look at the routing only",
    "dispatch phase": "rows go to their experts, with counts, flags and what waits for them",
    "permute phase": "rows are brought into the order of experts, or cast",
    "gemm1 phase": "the experts' first product, gate and up",
    "activation phase": "a kernel between the products, where one has it",
    "gemm2 phase": "the experts' second product, down",
    "wgrad phase": "gradients of the experts' weights",
    "unpermute phase": "a kernel adds up results, or brings them back into the order of tokens",
    "combine phase": "results go back to the owners of tokens, and are added up",
    "between phase": "attention, norms, gate and dense parts between the experts of two layers",
    "gather phase": "rows that all GPUs need go to them",
    "reduce phase": "partial sums travel and are added up",
    "the collective": "all of a collective's kernel, which has no phases",
    "all else": "parts that are not shown, together",
    "in all": "the parts together, which are the time",
    "path: compute": "multiplications",
    "path: wires": "messages on ports",
    "path: copying": "SMs and memory that move rows",
    "path: overhead": "launches, barriers",
    "path: no SM": "blocks that wait for their turn while others have all SMs",
    "path: latency": "links, switches, memory",
    # ---- what a GPU does in the mean ----
    "busy computing": "something of the GPU computes",
    "between kernels": "a gap between kernels passes, and nothing computes",
    "waiting for a launch": "a kernel could begin but for its launch, and nothing computes",
    "computing or between kernels": "one of these three; results of older versions do not say which",
    "waiting for SMs that copy rows": "its SMs or memory copy rows, and nothing computes; its ports may be busy too",
    "waiting for messages alone": "a message leaves or reaches it, no SM of it copies, and nothing computes",
    "waiting for rows on their way": "either of both; results of older versions do not say which",
    "waiting for other GPUs": "nothing of its own is under way, and another GPU is busy",
    "no GPU busy": "its tokens wait, and no GPU does anything: barriers, flags, starts, waits of hosts",
    "waiting for the last GPU": "its own tokens are combined, and others' are not",
    # ---- quantities of explain and diff ----
    "exposed communication, mean of the GPUs": "communication and waiting that no computation hides",
    **{
        f"{phase} {what}{way}": f"{says} of the {phase}{on}, all GPUs together"
        for phase in ("dispatch", "combine", "gather", "reduce")
        for what, says in (("payload", "rows"), ("on the wires", "all bytes, headers included,"))
        for way, on in (
            ("", " that leave GPUs, and reach them, for these are as many"),
            (", leaving GPUs", " on the ports out of GPUs"),
            (", reaching GPUs", " on the ports into GPUs: with multicast more than leave them, with sums fewer"),
        )
    },
    **{
        f"SMs {what}, mean of the SMs": f"time of an SM in which {says}"
        for what, says in (
            ("computing", "tiles and kernels compute"),
            ("copying", "it moves rows"),
            ("waiting for L2", "a tile waits for what it reads from the L2 cache"),
            ("waiting for HBM", "a tile waits for what it reads from memory"),
        )
    },
    "SMs that only communicate": "SMs of a GPU that move rows beside the products",
    "memory of a layer, fullest GPU": "buffers, tokens and weights of one layer, as `--details` has it",
    "memory with the experts of all layers": "the same, and the experts' weights of the model's other layers",
    "tasks": "tasks of the graph, by which a replay's size is told",
    # ---- bytes ----
    "payload": "rows of tokens, without headers and what else the wire carries",
    "dispatch": "payload of the port that carries most of it while tokens go to their experts",
    "combine": "the same while results come back",
    "both": "the same over both",
    "wire bound": "time of the busiest port: of each phase where a barrier separates them (apart), "
    "else of both (shared)",
    "payload of a port": "rows on the port that is in service longest in the phase",
    "headers": "of packets and messages",
    "requests": "of reads, before the answer",
    "acks": "acknowledgements of writes",
    "signals": "flags that say that rows are there",
    "evictions": "entries that leave a full table of a switch",
    "weights": "of experts that are copied to other GPUs",
    # ---- memory ----
    "kept": "stays from layer to layer",
    "kept buffers": "buffers that stay from layer to layer",
    "of a layer": "buffers that only one layer has at a time",
    # ---- network ----
    "out mean": "bytes on the wire of dispatch and combine that leave a network card (NIC)",
    "rail": "the leaf switch whose cards carry most, both ways together",
    "uplinks": "use of a leaf's ways to the spine, which only messages between rails, or groups of nodes, pass",
    # ---- uncertainty ----
    "5 %": "a time below which 5 % of the draws are",
    "fastest in": "share of the draws in which no scheme of these is faster",
    "before the next in": "share of the draws in which it is faster than the next row",
    # ---- tensor parallelism ----
    "up": "share of the time in which the links out of a GPU are busy",
    "down": "share of the time in which the links into a GPU are busy",
    "SMs": "SMs of a GPU that only communicate, beside the products",
    "gather": "payload of the rows that all GPUs need",
    "reduce": "payload of partial sums that are added up",
    "wire": "all bytes: payload, headers, requests, acknowledgements, flags",
    "waiting tiles": "tiles wait for what they read, from the L2 cache or memory",
    # ---- collectives ----
    "blocks": "thread blocks of the kernel, each on an SM",
    "algbw": "size over time",
    "busbw": "algbw times what each GPU must send per byte of the size, as nccl-tests count it",
    "up of a GPU": "bytes on the wire out of a GPU, mean over the GPUs",
    # ---- training ----
    "attn": "attention, norms, gate",
    "dense": "layers without experts, and shared experts",
    "exch": "rows travel while nothing computes",
    "peers": "waiting for GPUs of the stage that come later (imbalance)",
    "pipe": "waiting for another stage (bubble), and messages between stages",
    "head": "embedding, output head, loss",
    "end": "gradients added up and weights updated when nothing else is left",
    "host": "GPUs wait for hosts that launch, read counts, schedule: 0 if these took no time",
    "other": "head and end: embedding, output head, loss; gradients, weights updated",
    "jitter": "random delays",
    "peers from": "least time that a GPU of the stage waits for peers",
    "to": "most time that one does",
    "MFU": "model FLOP utilisation: multiplications that the model needs, over what the GPUs could do in the time",
    "MoE": "share of experts, exch and peers in the step",
    "bubble": "share of pipe in the step",
    "active of a GPU": "a kernel runs, or waits for other GPUs inside",
    "idle of a GPU": "no kernel runs: gaps, launches that come late, bubbles",
    "computing": "a kernel runs that multiplies, or does anything but communicate",
    "comm": "a kernel runs that moves rows, or waits for other GPUs",
    "hidden": "share of comm in which computing goes on; all of a fused kernel's",
    # ---- serving ----
    "TTFT": "time to the first token, from the beginning of the batch; mean of the requests",
    "TPOT": "time per output token of a request while it is decoded",
    "ITL of a request": "time between two deliveries of tokens",
    "TTFT of a request": "time from arrival until the first token",
    "TPOT of a request": "time per token behind the first, mean of the request",
    "input/s": "tokens of prompts per second and GPU",
    "output/s": "tokens that are generated per second and GPU",
    "capacity": "memory of the GPU",
    "positions": "tokens of its requests in the cache, at the end",
    "room for": "tokens for which the cache has room",
    "speed-up of requests": "the baseline's mean time of a request, from arrival until the last token, over this one",
    "speed-up of rates": "the largest rate of requests that keeps the limits, over the baseline's",
    "rate": "requests that come per second, or all at once",
    "tokens/s": "generated, per GPU, from the first arrival to the last token",
    "decoded": "requests that an iteration decodes",
    "prompts": "tokens of prompts in an iteration",
    "experts": "something of the MoE layers computes",
    "rows": "rows travel or are waited for, and nothing computes",
    "gaps": "between all other kernels, with the launch of an iteration",
    # ---- choosing ----
    "bound of a step": "the least time of the step by its multiplications alone, over its time",
    "total": "parameters",
    "active": "parameters that a token uses, without the embedding",
    "fullest": "memory of the GPU that needs most, without a scheme's buffers",
}
"""One line for each word. Where a word means something else elsewhere, that is said behind it."""


_IN_FULL = ContextVar("in_full", default=False)


@contextlib.contextmanager
def words_in_full(is_asked: bool) -> Iterator[None]:
    """Have `explain_words` give every meaning, if that is asked for."""
    before = _IN_FULL.set(is_asked)
    try:
        yield
    finally:
        _IN_FULL.reset(before)


def says(word: str) -> str:
    """The line that explains a word."""
    return WORDS[word]


def schemes_text(count: int) -> str:
    """Number of schemes, for a title: ``1 scheme``, ``2 schemes``."""
    return "1 scheme" if count == 1 else f"{count} schemes"


def meanings(word: str) -> dict[str, str]:
    """Lines on a word, by the word and what it is of where it has several meanings.

    What begins with it and a blank is listed too, so that a new name is no other's beginning.
    """
    wanted = word.lower()
    return {name: line for name, line in WORDS.items() if f"{name} ".lower().startswith(f"{wanted} ")}


def explain_words(tables: Iterable[Table]) -> list[str]:
    """Lines on the words over the columns of tables: of those of `WORDS` a command that explains them."""
    words: dict[str, None] = {}
    lines: dict[str, None] = {}
    for column in (one for table in tables for one in table.columns if one.says):
        if not _IN_FULL.get() and column.says in meanings(column.name).values():
            words[column.name] = None
        else:
            lines[f"{column.name}: {column.says}."] = None
    return [*lines, *_command("What the words over the columns mean", words)]


def explain_keys(keys: Iterable[str]) -> list[str]:
    """Lines on keys of `WORDS`: a command that explains them, or all their meanings."""
    if _IN_FULL.get():
        return [f"{key}: {says(key)}." for key in keys]
    return _command("What the words mean", keys)


def _command(head: str, words: Iterable[str]) -> list[str]:
    named = " ".join(f"'{word}'" if " " in word else word for word in words)
    return [f"{head}: moereplay words {named}"] if named else []
