"""Compilation of kernels, and the only place that imports numba or llvmlite.

| file | what it holds |
|---|---|
| `memory` | records, vectors and numbers behind one pointer |
| `compiling` | the decorators of kernels, and which compiler they take |
| `quick`, `translation` | from the source of kernels to LLVM, without numba |
| `standard`, `memory_types` | numba's own decorator and cache, and what numba is taught about memories |
| `settings` | numba's settings, and none of a file in the current folder |
| `folder`, `private`, `sources` | where compiled kernels are kept, and under which name |
| `cache` | how the quick compiler keeps them |

How to go to the next release of either: ``BACKEND.md``.
"""

from replay.engine.backend import sources as sources  # before all that kernels are made of
