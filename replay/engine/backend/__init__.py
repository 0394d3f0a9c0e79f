"""The back end of numba: all that the engine does with numba, and the only place that imports it.

| file | what it holds |
|---|---|
| `memory` | records, vectors and numbers behind one pointer; without numba |
| `memory_types` | what numba is taught about them |
| `compiling` | the decorators of kernels, and which compiler they take |
| `quick` | numba's steps without those that kernels do not need; private modules of numba |
| `standard` | numba's own decorator and cache |
| `settings` | numba's settings, and none of a file in the current folder |
| `folder`, `private`, `sources` | where compiled kernels are kept, and under which name |
| `cache` | how the quick compiler keeps them; private modules of numba |

How to go to the next numba: ``BACKEND.md``.
"""

from replay.engine.backend import sources as sources  # before all that kernels are made of
from replay.engine.backend.settings import config as config  # before all that imports numba
