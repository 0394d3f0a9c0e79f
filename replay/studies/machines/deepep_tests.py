"""DeepEP's own test programs, of both versions.

*V1* (deepseek-ai/DeepEP dd758ca): ``tests/legacy/test_intranode.py`` lines 25 and 214 to 262,
``test_internode.py`` lines 34 and 255 to 310, ``test_low_latency.py`` lines 228 to 248. The first
versions (ebfe47e) print no time of the normal kernels, which then follows from their rate. Of
normal kernels the best chunk's line is taken, as the project's tables have it.

*V2*: ``tests/elastic/test_ep.py`` lines 67 to 72 and 259 to 346.

What V1's programs do not print (experts; all sizes of the low-latency kernels) is taken from the
command line, where the log has it, or is their default. How many GPUs took part follows from
the bytes, or from the ranks that printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean

from replay.studies.machines.log import LIMITS, Log
from replay.studies.validate.bench import uniform_work

TOOL = "DeepEP's tests"
FP8_SHARE = (1 + 4 / 128) / 2  # of a BF16 row's bytes, as the tests count them
CLOSE = 0.03  # bytes as one count of GPUs would have them
SAMPLE = 4096  # tokens that say how many GPUs a token reaches
NODE_GPUS, MOST_GPUS = 8, 72
INTRANODE = "test_intranode.py"
INTERNODE = "test_internode.py"
LOW_LATENCY = "test_low_latency.py"
CONFIG = re.compile(
    r"^\[config\] num_tokens=(\d{1,7}), hidden=(\d{1,6}), "
    r"(?:num_topk_groups=(\d{1,3}), )?num_topk=(\d{1,3})"
)
BEST = re.compile(
    r"^\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?: SMs (\d{1,3}), NVL chunk \d+"
    r"(?:, RDMA chunk \d+)?[,:] (?:([\d.]{1,9}) \+ ([\d.]{1,9}) us, )?"
    r"(?:[\d.]{1,9} GB/s \(RDMA\), )?([\d.]{1,9}) GB/s \(NVL\)(?:, t: ([\d.]{1,9}) us)?"
)
RANK = re.compile(
    r"^\[rank (\d{1,4})\] Dispatch bandwidth: ([\d.]{1,9}) GB/s, avg_t=([\d.]{1,9}) us \| "
    r"Combine bandwidth: ([\d.]{1,9}) GB/s, avg_t=([\d.]{1,9}) us"
)
ELASTIC = {
    "ranks": re.compile(r"^ > Ranks: (\d{1,4}) x (\d{1,4})"),
    "experts": re.compile(r"^ > Experts: (\d{1,3})/(\d{1,5})"),
    "tokens": re.compile(r"^ > Tokens: \d{1,7} \(max: (\d{1,7})\), hidden: (\d{1,6})"),
    "sms": re.compile(r"^ > #SM: (\d{1,3}),"),
    "row_type": re.compile(r"use_fp8_dispatch=([01])"),
}
ELASTIC_TIME = re.compile(
    r"^ +[*@] EP: +(\d{1,4})/ *\d{1,4} \| (dispatch|combine): \d+ GB/s \(SO\), \d+ GB/s \(SU\), "
    r"([\d.]{1,12}) us, (\d{1,14}) bytes"
)
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    INTRANODE: {"num_experts": 256, "num_processes": 8},
    INTERNODE: {"num_experts": 256},
    LOW_LATENCY: {"num_tokens": 128, "hidden": 7168, "num_topk": 8, "num_experts": 288},
}


def is_text(log: Log) -> bool:
    """Tell whether a test of DeepEP printed some of it."""
    return re.search(r"^\[tuning\] |^\[rank \d+\] Dispatch band|^ > #SM: ", log.text, re.M) is not None


def read_text(log: Log) -> None:
    """Take the lines of all tests in a log."""
    _read_normal(log)
    _read_low_latency(log)
    _read_elastic(log)


# ---- V1, normal kernels ------------------------------------------------------------------


def _read_normal(log: Log) -> None:
    config: re.Match[str] | None = None
    for number, line in log.lines:
        config = CONFIG.match(line) or config
        match = BEST.match(line)
        if match is None:
            continue
        phase, dtype, rate = match[1], match[2], float(match[6])
        if config is None:
            log.leave("a line without the one that begins with [config]")
        elif dtype == "BF16":
            log.leave("dispatch in BF16: the tables have FP8")
        elif rate > 0:
            _take_normal(log, number, config, match, rate * (1 / FP8_SHARE if dtype else 1))
        else:
            log.leave(f"{phase} at no rate")


def _take_normal(log: Log, number: int, config: re.Match[str], match: re.Match[str], rate: float) -> None:
    """Take a line; `rate` is as if rows were BF16, in GB/s."""
    between = config[3] is not None
    program = INTERNODE if between else INTRANODE
    options = {**DEFAULTS[program], **log.options(program, number)}
    tokens, hidden, topk = (int(config[at]) for at in (1, 2, 4))
    time = match[5] or match[7]
    copies = rate * float(time) * 1e3 / (tokens * hidden * 2) if time and tokens * hidden else None
    gpus = _gpus(copies, options, topk, between=between)
    if gpus is None:
        log.leave("bytes of no count of GPUs with so many experts: copy the command as well")
        return
    setting = {
        "phase": match[1],
        "ep_size": gpus,
        "hidden": hidden,
        "topk": topk,
        "num_experts": options["num_experts"],
        "tokens_per_rank": tokens,
        "num_sms": int(match[3]),
    }
    if not between:
        if time is None:
            rows = _copies(gpus, options["num_experts"], topk) * tokens
            time = str(rows * hidden * 2 / rate / 1e3)
        log.take("deepep_normal", number, float(time), **setting)
    elif match[5]:
        log.take("deepep_internode", number, float(match[5]), **setting)
        log.take("deepep_internode_notify", number, float(match[4]), **setting)
    else:
        log.leave("a rate between nodes without a time")


def _copies(gpus: int, experts: int, topk: int) -> float:
    """GPUs that a token reaches in the mean."""
    tokens = SAMPLE // gpus
    work = uniform_work(gpus, tokens, experts, topk, 128, "bf16", max(1, gpus // NODE_GPUS))
    return float(work.matrix("copies").sum()) / gpus / tokens


def _gpus(copies: float | None, options: Mapping[str, int], topk: int, *, between: bool) -> int | None:
    """Number of GPUs that took part, by the copies of a token; the default where nothing says it."""
    experts = options["num_experts"]
    counts = [16, 32, 64] if between else [options.get("num_processes", NODE_GPUS), 8, 4, 2]
    if not 0 < topk <= experts <= LIMITS["num_experts"][1]:
        return None
    for gpus in counts:
        if not 1 < gpus <= MOST_GPUS or experts % gpus:
            continue
        if copies is None or abs(copies / _copies(gpus, experts, topk) - 1) <= CLOSE:
            return gpus
    return None


# ---- V1, low latency ---------------------------------------------------------------------


def _read_low_latency(log: Log) -> None:
    """Take the mean over all ranks that printed; each run of the test is one setting."""
    found: dict[tuple[int, ...], list[tuple[int, int, float, float]]] = {}
    for number, match in log.matches(RANK.pattern):
        options = {**DEFAULTS[LOW_LATENCY], **log.options(LOW_LATENCY, number)}
        sizes = tuple(options[key] for key in DEFAULTS[LOW_LATENCY])
        tokens, hidden, topk, _ = sizes
        rates, times = (float(match[2]), float(match[4])), (float(match[3]), float(match[5]))
        wanted = tokens * topk * (hidden + hidden / 32 + 16), tokens * topk * hidden * 2
        if all(
            size and abs(rate * time * 1e3 / size - 1) <= CLOSE
            for rate, time, size in zip(rates, times, wanted, strict=True)
        ):
            found.setdefault(sizes, []).append((number, int(match[1]), *times))
        else:
            log.leave("bytes of other sizes than the test's defaults: copy the command as well")
    for (tokens, hidden, topk, experts), lines in found.items():
        setting = {
            "ep_size": 1 + max(rank for _, rank, *_ in lines),
            "hidden": hidden,
            "topk": topk,
            "num_experts": experts,
            "tokens_per_rank": tokens,
        }
        for at, phase in enumerate(("dispatch", "combine"), start=2):
            time = fmean(line[at] for line in lines)
            log.take("deepep_low_latency", lines[0][0], time, phase=phase, **setting)


# ---- V2 ----------------------------------------------------------------------------------


def _read_elastic(log: Log) -> None:
    """Take the bandwidth of dispatch and combine, in the mean over ranks and cases of a type."""
    seen: dict[str, tuple[int, ...]] = {}
    found: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, float]]] = {}
    for number, line in log.lines:
        for key, pattern in ELASTIC.items():
            if match := pattern.search(line):
                seen[key] = tuple(map(int, match.groups()))
        if match := ELASTIC_TIME.match(line):
            if len(seen) < len(ELASTIC):
                log.leave("a line of V2 without its Config")
            elif seen["ranks"][0] > 1:
                log.leave("V2 between nodes: no table")
            else:
                fp8 = match[2] == "dispatch" and seen["row_type"][0]
                (_, ranks), (sms,) = seen["ranks"], seen["sms"]
                sizes = (ranks, sms, *seen["tokens"], *seen["experts"])
                rate = float(match[4]) / max(float(match[3]), 1e-9) / 1e3
                kind = (match[2], "fp8" if fp8 else "bf16", sizes)
                found.setdefault(kind, []).append((number, rate))
    names = ("num_gpus", "num_sms", "tokens_per_rank", "hidden", "topk", "num_experts")
    for (phase, row_type, sizes), rates in found.items():
        setting = dict(zip(names, sizes, strict=True))
        rate = fmean(rate for _, rate in rates)
        log.take("deepep_v2", rates[0][0], rate, phase=phase, row_type=row_type, **setting)
