"""SMs that DeepEP's second version gives its kernels: its own model of their bandwidth.

A kernel reads each token once and writes a row for each GPU that wants it. So many SMs are taken
that the busiest link is kept busy, a quarter more for safety, an even number, at least 4.

Source: deepseek-ai/DeepEP, ``deep_ep/buffers/elastic.py`` (``get_theoretical_num_sms``) and
``deep_ep/utils/envs.py`` (``get_nvlink_gbs``, ``get_rdma_gbs``).
"""

from __future__ import annotations

import math

READ_GB_PER_S, WRITE_GB_PER_S = 200.0, 50.0  # of an SM: defaults of the function, on every GPU
MARGIN = 1.25
LEAST, WITHOUT_OVERLAP = 4, 64
LINK_SHARE = 0.9  # of what the driver reports for all links, taken for their bandwidth
SIGNALLED = 17 / 16  # the driver reports 26.562 GB/s for a link of 25, 53.125 for one of 50


def expected_groups(num_experts: int, topk: int, num_groups: int) -> float:
    """Groups of equally many experts that a token has an expert of, if it chooses at random.

    Examples
    --------
    >>> round(expected_groups(256, 8, 8), 3)
    5.295
    """
    others = num_experts - num_experts // num_groups
    missed = math.comb(others, topk) / math.comb(num_experts, topk)
    return num_groups * (1 - missed)


def automatic_sms(
    device_sms: int,
    line_GB_per_s: float,
    num_ranks: int,
    num_experts: int,
    topk: int,
    overlaps: bool = True,
    *,
    num_nodes: int = 1,
    card_GB_per_s: float = 0.0,
) -> int:
    """SMs of a kernel, inside an NVLink domain or, in hybrid mode, in several.

    Parameters
    ----------
    device_sms
        SMs of a GPU.
    line_GB_per_s
        What all its links carry in one direction, as sold.
    num_experts
        Experts of all ranks, as many on each.
    topk
        Experts of a token.
    overlaps
        Whether computation is to run beside the kernel; if not, it takes at least 64 SMs.
    num_nodes, card_GB_per_s
        NVLink domains, and what a network card carries in one direction, as sold.
    """
    if num_ranks == 1:
        return device_sms
    # Per row that a GPU receives: what its SMs read and write, what its links carry.
    tokens = 1 / expected_groups(num_experts, topk, num_ranks)
    read, written, carried = tokens, 1.0, 1 - num_nodes / num_ranks
    link = line_GB_per_s * SIGNALLED * LINK_SHARE / carried if carried else math.inf
    if num_nodes > 1:
        # Tokens are written for the card, or into its own node's buffer, and read there again.
        rows = tokens * expected_groups(num_experts, topk, num_nodes)
        read, written = read + rows, written + tokens + rows / num_nodes
        link = min(link, card_GB_per_s / (rows * (1 - 1 / num_nodes)))
    needed = link * max(read / READ_GB_PER_S, written / WRITE_GB_PER_S)
    even = -(-max(LEAST, math.ceil(needed * MARGIN)) // 2) * 2
    return min(even if overlaps else max(even, WITHOUT_OVERLAP), device_sms)
