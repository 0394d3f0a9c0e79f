# mypy: allow-untyped-defs
"""Records, constants and memories of the kernels: what lies where, and what its numbers mean.

A record holds what is used together, so that it comes with one cache line. Numbers of lanes, pools
and the like are -1 where there is none.
"""

from __future__ import annotations

import numpy as np

from replay.engine.backend.memory import (
    FixedNumber,
    KernelMemory,
    Number,
    RecordLayout,
    Records,
    StridedColumn,
    Vector,
)

NEVER = 2**63 - 1
#: Longest service and latency, of a task and with all that touches add: no sum of times overflows.
LONGEST = NEVER >> 2

#: Successor that is no task: a `Scheduler` stops when its predecessor is visible.
SIGNAL = -(2**31 - 1)
#: How a run ends, in ``RunPlan.status``; the two tasks concerned follow, and what else is asked.
NOW, ROUND, SIGNALS, QUEUED, STATUS_SIZE = 3, 4, 5, 6, 7
OK, TOO_LATE, EARLY_RELEASE, LATE_CHARGE = range(4)

# --- Tasks --------------------------------------------------------------------------------------

#: A task: 32 bytes, so that one cache line serves every step of its life.
TASK = RecordLayout(
    "Task",
    duration=8,
    visible=8,  # while a task waits for a server: when it became ready
    edges=4,  # first of its successors; they end where those of the next task begin
    missing=4,  # dependencies that are not met
    lane=4,
    flight=4,  # flight class, which is its channel, or its way
)
#: ``lane`` of tasks that wait for nobody: pure delays, and pure delays that give credits back.
NO_LANE, GIVING_LANE = -1, -2
#: ``lane`` of a task in service that a miss delays, counted down: its station.
LATE_LANE = -3
#: ``missing`` of a task that holds or held a server, where credits have to know.
STARTED = -1
#: ``flight`` of tasks that are visible the moment they leave. Less than that, it is the number of
#: a way, counted down from -2.
NO_FLIGHT = -1
FIRST_WAY = -2

# --- Channels: tasks on their way, by the time at which they become visible or leave -------------

CHANNEL = RecordLayout("Channel", head=8, tail=8, kind=8, latency=8, base=8, size=8)
#: ``kind``: in order of time by construction, in ``slots``, or kept in order by a heap.
IN_ORDER, BY_HEAP = 0, 1
#: Distinct latencies of one resource that get a channel each; the rest share a heap.
MAX_CLASSES = 8
#: How tasks with credits or touches leave: their channel, the lists of what they take and give
#: back. ``gives`` is eight times the list of what is given back, and the flags.
WAY = RecordLayout("Way", channel=8, needs=8, gives=8)
WAY_FLAGS, MAY_BE_EARLY, LOOKS_UP, SHARES = 3, 1, 2, 4

# --- Lanes, stations, pools -----------------------------------------------------------------------

#: A queue in order of (ready time, id): ``slots[head:tail]``. Two cache lines.
LANE = RecordLayout(
    "Lane",
    run=8,  # where what became ready at ``run_time`` begins; what has no start yet, in streams
    tail=8,
    free_at=8,  # in streams: when the server is free
    head=8,
    run_time=8,
    station=8,
    touched=8,
    place=8,  # in its station's heap or list
    # What orders lanes; copies of the head's.
    priority=8,
    ready=8,
    task=8,
    # Waiting for credits: a node of the pool's pairing heap.
    pool=8,
    next=8,
    previous=8,
    child=8,
    served=8,  # when its station served it last, counted in services
    # ``needs``: list of what its head takes; stations have no ``free_at``. ``is_line``: whether a
    # stream is a line, 1 or -1; streams do not serve in turns.
    shares={"needs": "free_at", "is_line": "served"},
)
#: A resource that needs an event for each end.
STATION = RecordLayout(
    "Station",
    free=8,  # servers
    rule=8,
    contends=8,  # whether its starts have a place in the common order
    base=8,  # its lanes: ``station_lanes[base:base + size]``
    size=8,
    touched=8,
    served=8,
    late=8,  # channel of tasks that a miss delays
)
#: ``rule``: how a station treats lanes that lack credits, as in ``taskgraph.DISCIPLINES``.
FIFO, VOQ, TURNS, LINE = range(4)
POOL = RecordLayout("Pool", free=8, waiting=8, touched=8)
#: A list of (pool, units) that are taken or given back together.
NODE = RecordLayout("Node", next=8, pool=8, units=8)
#: A take that several tasks give back together: how many of them have not left yet.
SHARE = RecordLayout("Share", left=8, pool=8, units=8)
#: Stations, then pools, that compete for the next start: a heap, and the place of each in it.
RIVAL = RecordLayout("Rival", heap=8, place=8)

# --- Gates ----------------------------------------------------------------------------------------

MEMBER = RecordLayout("Member", gate=4, waiter=4, slot=4)
SLOT = RecordLayout("Slot", tile=4, waiter=4)
TILE = RecordLayout("Tile", base=8, open=8, first=8, is_done=8)

# --- Tables and touches ---------------------------------------------------------------------------

#: A table: its keys are a list from the one that leaves next to the one that came last.
#: ``backing`` and ``port`` are lanes of lines, -1 for none.
TABLE = RecordLayout("Table", free=8, oldest=8, newest=8, policy=8, patience=8, backing=8, port=8)
#: ``policy``, as in ``taskgraph.POLICIES``.
LRU, OLDEST = range(2)
#: A key: ``form`` is that of the touch that brought it in, ``time`` when it was touched last, and
#: in a table with a backing until when a task that touched it is in service; ``arrival`` is when it
#: came, or will come, from the backing.
KEY = RecordLayout("Key", state=4, form=4, older=4, newer=4, time=8, arrival=8)
UNKNOWN, PRESENT, EVICTED = range(3)
#: A touch; those of a task follow one another. ``row`` is its place in the order of adding.
TOUCH = RecordLayout("Touch", key=4, form=4, charged=4, row=4)
#: What many touches have in common.
FORM = RecordLayout("Form", table=8, room=8, price=8)
#: ``Form.room`` is twice the units that a key takes, and whether the touch drops it.
ROOM_FLAGS, DROPS = 1, 1
PRICE = RecordLayout("Price", cost=8, port_duration=8, lag=8)
COST = RecordLayout("Cost", miss_latency=8, miss_duration=8, evict_duration=8)
#: What a touch found, as in ``timeline.TouchOutcome``.
HIT, NEW, MISSED, AND_EVICTED = 0, 1, 2, 4

# --- Laying out -----------------------------------------------------------------------------------

#: What is known of a resource before the layout; see `layout.survey`.
SURVEY = RecordLayout(
    "Survey",
    tasks=8,
    first_priority=8,
    is_mixed=8,  # whether priorities differ
    takers=8,
    givers=8,  # tasks that only give credits back
    most_takes=8,  # of one task
    most_gives=8,
    zero=8,  # tasks that wait for a server but hold it for no time,
    instant=8,  # and those of them that are visible at once, too
    looks_up=8,  # whether touches may lengthen its services
    late=8,  # touches that may make its tasks late
)
#: A latency at a place (a resource, the null one, the null one for tasks with credits), and the
#: next one of that place.
CLASS = RecordLayout("Class", latency=8, next=8, count=8, kind=8, place=8)
#: Three numbers that got one: nodes, ways, lanes (resource, priority, needs), forms, costs.
TRIPLE = RecordLayout("Triple", a=8, b=8, c=8)
#: What separates the lanes of a resource: nothing, the priority, or also what its tasks take, or
#: from which pools they take.
ONE_LANE, BY_PRIORITY, BY_NEEDS, BY_POOLS = 0, 1, 2, 3


class Packing(KernelMemory):
    """The graph as the layout reads it, and the tables that it fills: larger ones if one is full.

    Without takes or touches their ``indptr`` have size 1.
    """

    first_task = FixedNumber()
    num_tasks = FixedNumber()
    has_credits = FixedNumber()
    has_touches = FixedNumber()
    resource = StridedColumn()
    priority = StridedColumn()
    duration = StridedColumn()
    latency = StridedColumn()
    indptr = Vector(np.int32)
    num_predecessors = Vector(np.int32)
    successors = Vector(np.int32)
    # Takes, and their rows by who takes and by who gives back
    taker = Vector(np.int32)
    pool = StridedColumn()
    units = StridedColumn()
    take_indptr = Vector(np.int32)
    take_order = Vector(np.int32)
    give_indptr = Vector(np.int32)
    give_order = Vector(np.int32)
    share = StridedColumn()
    touch_indptr = Vector(np.int32)  # touches by who touches
    # What is filled
    room = FixedNumber()  # of each table of triples
    null = FixedNumber()  # number of resources
    num_single = FixedNumber()
    lane_rule = Vector(np.int64)  # per resource
    single_lane = Vector(np.int64)  # lane of a resource if nothing separates its tasks
    is_stream = Vector(np.int8)  # per resource: one server, one lane, no credits
    lane_tasks = Vector(np.int64)  # tasks of each lane
    lanes = Records(TRIPLE)  # lanes beyond the single ones, and the table to find them
    lane_table = Vector(np.int32)
    nodes = Records(TRIPLE)
    node_table = Vector(np.int32)
    ways = Records(TRIPLE)
    way_table = Vector(np.int32)
    classes = Records(CLASS)
    first_class = Vector(np.int64)  # per place
    wanted_pool = Vector(np.int64)  # room for what one task takes
    wanted_units = Vector(np.int64)
    tasks = Records(TASK)
    # How many there are; a vector, so that they survive the tables.
    sizes = Vector(np.int64)


#: ``Packing.sizes``: lanes beyond the single ones, nodes, ways, flight classes, tasks that are
#: visible when they leave.
LANES, NODES, WAYS, CLASSES, DIRECT = range(5)


class PackedTouches(KernelMemory):
    """Columns of the touches in the order in which they were added, and what becomes of them."""

    first_row = FixedNumber()
    num_touches = FixedNumber()
    room = FixedNumber()  # of forms, prices and costs
    order = Vector(np.int32)  # touches by task
    number = Vector(np.int32)  # of the key of each touch, in that order
    form = Vector(np.int32)  # of each touch
    table = StridedColumn()
    miss_latency = StridedColumn()
    miss_duration = StridedColumn()
    evict_duration = StridedColumn()
    port_duration = StridedColumn()
    lag = StridedColumn()
    units = StridedColumn()
    charged = StridedColumn()
    drops = StridedColumn()
    forms = Records(TRIPLE)
    form_table = Vector(np.int32)
    prices = Records(TRIPLE)
    price_table = Vector(np.int32)
    costs = Records(TRIPLE)
    cost_table = Vector(np.int32)
    touches = Records(TOUCH)
    sizes = Vector(np.int64)


#: ``PackedTouches.sizes``: what there is of each.
FORMS, PRICES, COSTS = range(3)


class RunPlan(KernelMemory):
    """Everything a run changes, and what it reads of the graph."""

    # Of the graph
    num_tasks = FixedNumber()
    num_members = FixedNumber()
    num_tiles = FixedNumber()
    has_touches = FixedNumber()
    has_turns = FixedNumber()
    has_instant = FixedNumber()  # tasks that are visible the moment they start
    successors = Vector(np.int32)  # a negative one is an event of a gate
    latency = StridedColumn()  # for tasks whose channel does not know
    # Channels: flights first, then one for each station, that of pure delays last
    shift = FixedNumber()  # a key of the tree is ``time << shift | channel``
    num_flights = FixedNumber()
    last_channel = FixedNumber()
    first_leaf = FixedNumber()
    tasks = Records(TASK)
    slots = Vector(np.int32)  # queues of the lanes and of the channels in order
    tree = Vector(np.int64)  # tournament over the channels
    channels = Records(CHANNEL)
    heap_time = Vector(np.int64)
    heap_task = Vector(np.int32)
    # Lanes; those of streams are the first ones
    num_streams = FixedNumber()
    num_stations = FixedNumber()
    lanes = Records(LANE)
    stations = Records(STATION)
    station_lanes = Vector(np.int64)
    pools = Records(POOL)
    rivals = Records(RIVAL)
    nodes = Records(NODE)
    ways = Records(WAY)
    turn_indptr = Vector(np.int32)  # stations that serve in turns, by the pools they take from
    turn_stations = Vector(np.int32)
    give_indptr = Vector(np.int32)  # takes by who gives back: of shares, or perhaps too early
    give_order = Vector(np.int32)
    taker = Vector(np.int32)
    share = StridedColumn()  # of each take, -1 for none
    shares = Records(SHARE)
    # Gates
    members = Records(MEMBER)
    gate_slot = Vector(np.int64)  # next free slot of each gate
    gate_slots = Records(SLOT)
    tiles = Records(TILE)
    # Tables
    touch_indptr = Vector(np.int32)  # of size 1 where nobody touches anything
    touches = Records(TOUCH)
    forms = Records(FORM)
    prices = Records(PRICE)
    costs = Records(COST)
    tables = Records(TABLE)
    keys = Records(KEY)
    found = Vector(np.int8)  # what each touch found
    # When what each touch drew from the port and the backing is served; empty without lines.
    port_served = Vector(np.int64)
    backing_served = Vector(np.int64)
    extra_latency = Vector(np.int64)  # what touches add to the latency of each task
    # Going on after a pause
    resume_at = FixedNumber()  # time of the pause
    queue = Vector(np.int32)  # tasks that waited for a server or credits then, by (ready time, id)
    num_queued = Number()
    # Work lists and their lengths
    now = Number()
    round = Number()  # rounds of this instant that are over
    num_signals = Number()
    num_stack = Number()
    num_touched_lanes = Number()
    num_late_lanes = Number()
    num_touched_stations = Number()
    num_touched_pools = Number()
    num_rivals = Number()
    num_deferred = Number()
    num_arrivals = Number()
    stack = Vector(np.int32)  # tasks that are visible now
    touched_lanes = Vector(np.int32)
    late_lanes = Vector(np.int32)
    touched_stations = Vector(np.int64)
    touched_pools = Vector(np.int64)
    deferred = Vector(np.int64)  # lanes that wait at a pool once the instant is over
    arrivals = Vector(np.int32)
    status = Vector(np.int64)
