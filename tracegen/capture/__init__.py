"""Recording the routing of a Hugging Face model while it runs.

torch and transformers are needed to capture, and imported only then; a journal that a
killed capture left behind is turned into a trace without them.

The package ``tracegen`` binds this package's function :func:`capture` to its own name,
so that ``tracegen.capture(model, path)`` works; import everything else with
``from tracegen.capture.session import ...`` and the like.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracegen.capture.session import CaptureSession

__all__ = ["BUFFER_BYTES", "capture", "recover"]

BUFFER_BYTES = 8 * 2**20
"""Rows kept in memory before they go to the journal, in bytes: what a crash can lose."""


def capture(
    model: Any,
    path: str | Path,
    *,
    overwrite: bool = False,
    weights: bool = True,
    token_ids: bool = False,
    title: str = "",
    license: str = "",
    dataset: str = "",
    fallback: Literal["gate-logits"] | None = None,
    buffer_bytes: int = BUFFER_BYTES,
) -> CaptureSession:
    """Record which experts every token chooses while a model runs.

    Use as ``with tracegen.capture(model, "trace.h5"): model.generate(...)``. Rows go to
    ``trace.h5.partial`` as they are made; leaving the block writes the trace. If the
    block is left by an error, or the process dies, the ``.partial`` file stays and
    :func:`recover` makes a trace of it.

    Several threads may run the model at a time: each forward pass is a step of its own. Batches
    whose sequences follow each other in one row are told apart by their ``position_ids``.

    Under ``torchrun`` every rank captures with the same path, on a shared file system;
    rank 0 writes one trace with the rank of each token.

    Parameters
    ----------
    model
        A transformers model, loaded. Its forward and generate behave as before.
    path
        Trace file to write; its folder must exist.
    overwrite
        Whether an existing trace, or the remains of a killed capture, may be replaced.
    weights
        Whether to record gate weights, as the experts receive them.
    token_ids
        Whether to record vocabulary entries. They reveal the text.
    title, license
        Of the trace.
    dataset
        Origin of the prompts; said of every request.
    fallback
        ``"gate-logits"`` allows transformers below 5 and remote code, where expert ids
        are derived from the output of the gate modules; see
        :mod:`tracegen.capture.fallback`.
    buffer_bytes
        Rows kept in memory between writes, in bytes.

    Returns
    -------
    A context manager; ``session.num_tokens`` counts what was recorded so far.

    Raises
    ------
    UserError
        If the model has no routed experts that can be seen, torch or transformers are
        missing or too old, the file exists, or another capture of this process writes it.
        Inside the block: if a generation cannot be recorded faithfully (beam search, assisted
        decoding, guidance), a packed batch cannot be taken apart, a layer did not run where
        it could be seen, or its routing was overridden where it cannot. On leaving: if nothing
        was recorded.
    """
    from tracegen.capture.session import CaptureOptions, CaptureSession

    return CaptureSession(
        model,
        path,
        CaptureOptions(
            overwrite=overwrite,
            weights=weights,
            token_ids=token_ids,
            title=title,
            license=license,
            dataset=dataset,
            fallback=fallback,
            buffer_bytes=buffer_bytes,
        ),
    )


def recover(
    journals: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
) -> tuple[Path, str]:
    """Make a trace of what a killed capture left behind.

    Parameters
    ----------
    journals
        The ``.partial`` file, or those of all ranks, one each.
    out
        Trace file to write; None for the name the capture would have used.
    overwrite
        Whether an existing trace may be replaced.

    Returns
    -------
    The path written and the content id. The journals stay.

    Raises
    ------
    UserError
        If a file is no journal of a capture, holds no rows, or the trace exists.
    """
    from tracegen.capture.finish import recover as finish

    if isinstance(journals, str | Path):
        journals = [journals]
    return finish(journals, out, overwrite=overwrite)
