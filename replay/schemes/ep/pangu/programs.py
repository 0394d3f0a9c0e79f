"""The kernels of Pangu's exchange, operator by operator as mindformers' dispatcher calls them.

An operator is one kernel. Casts that change no size count like others; views and constants do not.
A sort of 32-bit keys with 4-byte indices reads and writes both in four passes of 8 bits, which is
assumed. Sizes of an operator that depend on values (NonZero) let the host wait.
"""

from __future__ import annotations

from replay.model.machine.host import Operation

ID_BYTES = 4  # int32
WEIGHT_BYTES = 2  # BF16
COUNT_BYTES = 4  # FP32
SORT_BYTES = 4 * 2 * (4 + 4)
"""Device memory traffic of a sort for each key."""

IDS, WEIGHTS = "all-gather of expert ids", "all-gather of gate weights"
ROWS, SUMS = "all-gather of rows", "reduce-scatter of sums"
WEIGHT_GRADIENTS = "reduce-scatter of gradients of gate weights"
INSIDE, INSIDE_IDS = "all-to-all of rows", "all-to-all of expert ids"
TELL = "all-to-all of counts"
WEIGH, SORT = "weigh rows", "sort by expert"
SPLITS_WAIT, ROWS_WAIT = "splits to the host", "number of rows to the host"

DISPATCHER = "mindformers token_dispatcher.py"
EACH_SLOT = "a 4-byte value for each (gathered slot, expert)"
HISTOGRAM = Operation("histogram of ids", moves="ids of all gathered slots")
ONE_HOT = Operation("one-hot of ids", moves=EACH_SLOT)
ONE_HOT_SUM = Operation("counts by expert", moves=EACH_SLOT)
ZEROS = Operation("zeros for the sums", moves="gathered tokens, as many zeros")
PERMUTE = Operation("permute", moves="a row for each slot of the node")
ADD = Operation("unpermute", moves="every returned row; a sum for each, read and written")
ADD_NODES = Operation("sums of all nodes", moves="sums of every node, their sum")
SPLITS = Operation(
    "splits",
    10,
    source=f"{DISPATCHER}: three sums, a cumulative sum, four casts, two copies",
)
ROUTE = Operation(
    "order of slots",
    8,
    "a sort of the ids of all gathered slots",
    f"{DISPATCHER}, get_exdispatch_idx: two casts, sort, weights, tokens, two comparisons, and",
)
SELECT = Operation(
    "slots of the node",
    4,
    "ids and weights of all gathered slots",
    f"{DISPATCHER}, get_exdispatch_idx: NonZero, three selections",
)
ORDER = Operation(
    "order of rows",
    4,
    "two sorts of the ids of received rows",
    f"{DISPATCHER}: two casts, two sorts",
)
