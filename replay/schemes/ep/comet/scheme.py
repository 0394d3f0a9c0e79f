"""COMET: tiles overlap rows inside each of two kernels, in which some SMs communicate.

Sources: arXiv 2502.19811v3 (MLSys 2025), sections 3 and 4, and bytedance/flux 19831ca, its library.
Kernel 1 is dispatch and GEMM-1, kernel 2 GEMM-2 and combine; dispatch and combine never overlap
each other. What stands around the kernels, and what comes back, differs between the paper
(`replay.schemes.ep.comet.paper`) and the library (`replay.schemes.ep.comet.flux`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from replay.model.compute.casts import cast_before_dispatch
from replay.model.compute.tile_order import TILE_ORDERS
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.schemes.ep import memory
from replay.schemes.ep.base import Scheme
from replay.schemes.ep.comet.combine import gemm2_and_combine
from replay.schemes.ep.comet.dispatch import dispatch_and_gemm1
from replay.schemes.ep.facts import Buffer
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.comet.combine import Send

PAPER = "arXiv 2502.19811v3"
LIBRARY = "bytedance/flux 19831ca"

FIRST, SECOND = "dispatch and gemm1", "gemm2 and combine"  # the kernels

# Splits of the SMs to choose from. The paper says that several are compiled and profiled, and
# shows the best for three set-ups (18, 26 and 46 of 132, figure 8) but not the list. The library
# has kernels with 28 (BF16) and 32 (FP8), and profiles 26, 28 and 30 (docs/tuning_guide.md).
SPLITS = (6, 12, 18, 26, 46)
RASTERS = (
    "expert",
    "unit:4",
)  # of tiles of GEMM-1: the library has kernels of either, and profiles


@dataclass(frozen=True)
class CometOptions(Options):
    """Options of the two fused kernels."""

    dispatch_sms: int = option(
        26,
        "SMs that communicate in kernel 1. The library profiles several pre-compiled splits.",
        f"{PAPER} figure 8: 18, 26 and 46 are the best for kernel 2",
    )
    combine_sms: int = option(26, "SMs that communicate in kernel 2.", f"{PAPER} figure 8: 18, 26 and 46 are the best")
    message_rows: int = option(
        16,
        "Most rows that a communicating block fetches at a time; in `comet` four times as many "
        "partial rows go back together.",
        "assumed",
    )
    column_block: int = option(
        0,
        "Columns of GEMM-2's output that are finished, reduced and sent together. 0 takes an "
        "eighth of a row in `flux`, as the library does (a seventh of 7168, a ninth of 1152), and "
        "512 columns in `comet`.",
        f'{LIBRARY}; {PAPER} says "column blocks" and leaves their width open',
        unit="columns",
    )
    rows_of: str = option(
        "experts",
        "Rows that travel. experts: one for every (token, expert). gpus: one for every (token, GPU), "
        "fetched once for the token's experts there, whose results are added up before they are "
        "sent, as `flux` always does. The two differ where a token chooses several experts of a "
        "GPU, as where GPUs share experts.",
        f"{PAPER} figure 4 has M x topk rows; but its buffer has M (section 5.5), and what is sent "
        "follows the top-K reduction (section 3.2.1)",
        choices=("experts", "gpus"),
    )
    tile_order: str = option(
        "unit:4",
        "Which ready tile of GEMM-1 goes first of those whose last rows come from sources equally "
        "far away. arrival takes tiles as they became ready; expert takes the lowest expert, row "
        "tile by row tile; unit:N goes through units of N row tiles of an expert column by column, "
        "and all of a unit waits for its last row.",
        f"{LIBRARY}: get_sorted_problem_schedule cuts problems of four row tiles, sorts them by "
        "ranks needed and then by expert, and kernels go through each by columns (AlongM) or by "
        "rows (AlongN); the paper says that local rows go first, and nothing within a source",
        choices=TILE_ORDERS,
    )


class FusedKernelPair(Scheme):
    """Tile-granular overlap inside each of two fused kernels.

    Attributes
    ----------
    traffic_of
        Class of traffic by what a row is fetched and sent for, see `CometOptions.rows_of`.
    """

    overlap = "inside each of two fused kernels"
    phases_separated = False
    gemm_types = dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})  # what FP8 GEMMs write, too
    validity = "measured on 8 H800 and on 8 L20"
    tuned_by_default = True
    candidates = MappingProxyType({"dispatch_sms": SPLITS, "combine_sms": SPLITS, "tile_order": RASTERS})
    options: CometOptions = CometOptions()
    traffic_of: Mapping[str, str]

    def __init__(self) -> None:
        self.traffic = self.traffic_of[self.options.rows_of]
        super().__init__()

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """See `Scheme`; what a row is for decides the class of traffic."""
        changed = super().with_options(given)
        changed.traffic = self.traffic_of[changed.options.rows_of]
        return changed

    def communication_sms(self, system: System) -> int | None:
        """SMs of the kernel that has more of them."""
        return max(self.options.dispatch_sms, self.options.combine_sms)

    def build(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add what precedes the kernels, the kernels, and what stands between and behind them."""
        first, second = (self._split(machine, name) for name in ("dispatch_sms", "combine_sms"))
        start = cast_before_dispatch(machine, work, start)  # which other GPUs read as they are
        ends, activated = dispatch_and_gemm1(
            work,
            machine,
            first,
            self.before(work, machine, start),
            num_sms=self.options.dispatch_sms,
            message_rows=self.options.message_rows,
            fused_activation=self.fuses_activation,
            once=self.options.rows_of == "gpus",
            tile_order=self.options.tile_order,
        )
        ends = self.between(work, machine, ends)
        hidden = work.shape.hidden
        ends = gemm2_and_combine(
            work,
            machine,
            second,
            machine.kernel(ends, SECOND),
            num_sms=self.options.combine_sms,
            block_columns=self.options.column_block or self.block_columns(hidden),
            send=self.sends(work),
            inputs=activated if self.fuses_activation else None,
        )
        ends = self.behind(work, machine, ends)
        if work.is_backward:  # neither fuses the weight gradients
            pool = machine.sms.pool("sm-wgrad", machine.sms.count)
            for projection in (DOWN, UP):
                ends = weight_gradient_kernel(machine, work, projection, pool, ends)
        return ends

    @abstractmethod
    def before(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Add what precedes kernel 1, and its launch: (rank,) tasks."""

    def between(self, work: LayerWork, machine: Machine, done: Ints) -> Tasks:
        """Add what stands between the kernels: (rank,) tasks."""
        return done

    def behind(self, work: LayerWork, machine: Machine, sent: Ints) -> Tasks:
        """Add what follows kernel 2: (rank,) tasks."""
        return sent

    @abstractmethod
    def block_columns(self, hidden: int) -> int:
        """Columns of a block of results, where the option leaves them open."""

    @abstractmethod
    def sends(self, work: LayerWork) -> Send:
        """Lay out what every block of columns sends."""

    def _split(self, machine: Machine, name: str) -> Split:
        return self.split(machine, name, rest="compute")


def shared_tokens(work: LayerWork) -> Buffer:
    """Device memory of the symmetric buffer: a row for each token of all GPUs."""
    shared = memory.on_each(work, work.num_tokens * work.dispatch_row_bytes)
    return Buffer("tokens of all GPUs", shared, stays=True)
