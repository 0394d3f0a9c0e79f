"""Descriptions of machines, one TOML file each.

A file of your own can start from one of these and say only what differs; every
value has its unit in its key, and a source::

    base = "dgx-h100"
    name = "two-nodes"
    summary = "two DGX H100 on one rail-optimised network"

    [fabric]
    num_domains = { value = 2, source = "planned for spring", confidence = "low" }

Most tables are in every file. ``[warp]`` and ``[nccl]`` are of machines that run CUDA,
``[ai_core]`` of those that run CANN; ``[cache]`` is of machines of whose L2 cache more is known
than its size, ``[mesh]`` of machines without switches, ``[groups]`` of those whose GPUs of a domain
are in groups.

``moereplay hardware show NAME`` lists all keys; :mod:`hwmodel.tables` says what each
means. Pass the path where a name is expected.
"""
