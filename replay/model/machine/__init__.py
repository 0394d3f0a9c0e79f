"""The machine: bytes, rows and tokens become picoseconds here.

The one exception are GEMM tiles and dense parts, which `replay.model.compute` times. The formulas
and their numbers are those of `hwmodel`; `Costs` (times.py) and `Transfers.send` (transfers.py) ask
it.

`Machine` (machine.py) holds one part for each thing a system can do:

======================  ==========================================================================
part                    verbs
======================  ==========================================================================
itself (tasks.py)       mark, gather, join, order, meet, delay, serve; kernel, memory_kernel,
                        small_kernels, stream; path
`resources`             ports, memories, hosts, hubs: made `once`, each with its class
`costs` (times.py)      sm_store, sm_load, sm_copy, sm_add; warp_scan, warp_copy, warps_add,
                        warps_add_late; stream, cached, memory_load, cache_load, visible; behind,
                        flag, poll, host_flag, write_through, release, remote_load, entering,
                        grid_barrier; ns for times that a scheme states
`domains`               of, local, peer, members, crosses: who shares NVLink (domains.py)
`network`               ports between domains (network.py), which rdma.py writes over
`transfers`             store, load over the hops of a path (paths.py); fan_out; packets
`switch` (in_switch)    multicast, reduce
`merging`               load, reduce, meet: requests for one address that a switch merges
`sms`                   split, pool, channels, warp_lanes, units; the ledger of who holds how many
`buffers`               pools, unnamed, outboxes_of, rings
`caches`                tables, new_keys, touch
`l2`                    new_blocks, read: weights and activations of tiles
`host`                  begin, row (launches, of `kernel` and `small_kernels`); wait, poll, work
`sync`                  barrier, rails: GPUs that meet; flag, exchange_counts, notify: GPUs that
                        tell others; fence: what they wait for before either
`notes`                 follow, count, ratio, tile, poll, meet: what a result or page reports
======================  ==========================================================================

Every message over NVLink takes room in the switch (input_buffers.py), unasked.

Made of these: rings.py (chunks through ring buffers), block_scheduler.py (blocks that wait on
SMs), multimem.py (accesses to all members of a group). Kernels of libraries are the next room,
`replay.model.collectives`.
kinds.py lists the kinds of task and what each counts as.

**The rule for schemes.** A scheme names work in rows, bytes, tokens and tasks. How long the work
takes is the machine's answer, a `Time` that a scheme adds up, multiplies and hands on without
looking inside. Times that a scheme states are those of its own options (``..._ns``) and of its own
software: constants ``..._NS``, each with its source beside it. ``machine.system`` is not for
schemes. `tests/replay/schemes/test_rule.py` holds every file of `replay/schemes` to this.
"""
