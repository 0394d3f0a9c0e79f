"""Kernels that a software stack launches for a part of a step, read from its public sources.

One TOML file a stack. Its rows are operations in the order of their launch, each with its kernels,
what they move, what the host does besides, and the file and line that say so. Counts and bytes are
expressions in sizes of the work; conditions choose among a stack's options.
"""

from replay.model.work.kernel_lists.expressions import Expression as Expression
from replay.model.work.kernel_lists.lists import (
    Engine as Engine,
)
from replay.model.work.kernel_lists.lists import (
    EngineKernel as EngineKernel,
)
from replay.model.work.kernel_lists.lists import (
    KernelList as KernelList,
)
from replay.model.work.kernel_lists.lists import (
    ListedOperation as ListedOperation,
)
from replay.model.work.kernel_lists.lists import (
    ListRow as ListRow,
)
from replay.model.work.kernel_lists.lists import (
    Pass as Pass,
)
from replay.model.work.kernel_lists.lists import (
    RankedOperation as RankedOperation,
)
from replay.model.work.kernel_lists.lists import (
    load as load,
)
from replay.model.work.kernel_lists.lists import (
    names as names,
)
from replay.model.work.kernel_lists.sizes import KernelSizes as KernelSizes
