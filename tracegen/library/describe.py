"""Entries of a catalogue, made from the traces themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from tracegen.library.catalogue import Entry, sha256_of
from tracegen.shared.errors import UserError
from tracegen.shared.strict import mistake_in
from tracegen.trace.tables import PHASES


def skew(load: npt.NDArray[Any]) -> tuple[float, float]:
    """Imbalance of tokens over experts.

    Parameters
    ----------
    load
        Tokens that chose each expert, (layer, expert).

    Returns
    -------
    Tokens of the busiest expert over the mean expert's, and the Gini coefficient; each the
    median over layers.

    Examples
    --------
    >>> skew(np.array([[1, 1, 1, 1], [0, 0, 0, 8], [2, 2, 2, 2]]))
    (1.0, 0.0)
    """
    if not load.size:
        return 0.0, 0.0
    shares = np.sort(load.astype(np.float64), axis=1)
    total = np.maximum(shares.sum(axis=1), 1e-300)
    experts = shares.shape[1]
    rank = np.arange(1, experts + 1)
    # Gini, "Variabilità e mutabilità" (1912), in its form for sorted values.
    gini = (2 * rank - experts - 1) @ shares.T / (experts * total)
    peak = shares[:, -1] * experts / total
    return round(float(np.median(peak)), 4), round(float(np.median(gini)), 4)


def entry(
    path: Path,
    name: str,
    *,
    file_name: str = "",
    dataset: str = "",
    citation: str = "",
    source: str = "",
) -> Entry:
    """Entry of a catalogue for a file beside it, every value of which is checked.

    Parameters
    ----------
    path
        Of the trace.
    name
        In the catalogue.
    file_name
        To be listed; by default that of the file.
    dataset
        Texts that were routed; by default those named in the request table.
    citation
        Publication to cite.
    source
        Origin of the trace; by default the one of its provenance.

    Raises
    ------
    UserError
        If the file is no valid trace, or something cannot be listed.
    """
    from tracegen.file import reader

    with reader.open_trace(path) as file:
        file.verify()
        tokens = file.read([0] if file.num_layers else []).tokens
        requests = file.read([], slice(0, 0)).requests
        peak, gini = skew(file.load_per_expert)
        if not dataset and requests.dataset is not None:
            dataset = ", ".join(np.unique(requests.dataset).tolist())
        described = {
            "name": name,
            "title": file.info.title or name,
            "file": file_name or path.name,
            "file_bytes": file.file_bytes,
            "sha256": sha256_of(path),
            "content_id": file.content_id,
            "model": file.model.shape.name if file.model.shape else file.model.model_id,
            "dataset": dataset,
            "kind": file.info.kind,
            "phase": ", ".join(PHASES[p] for p in np.unique(tokens.phase)),
            "num_layers": file.num_layers,
            "num_tokens": file.num_tokens,
            "num_experts": file.num_experts,
            "topk": file.topk,
            "num_ranks": file.num_ranks or 0,
            "has_gate_weights": file.has_gate_weights,
            "load_max_over_mean": peak,
            "load_gini": gini,
            "license": file.info.license,
            "citation": citation,
            "source": source or _source(file.info.provenance),
        }
    try:
        return Entry.model_validate(described)
    except ValidationError as error:
        key, problem = mistake_in(error)
        msg = f"{name}: {key}: {problem} ({described.get(key)!r:.80})"
        raise UserError(msg) from error


def _source(provenance: dict[str, Any]) -> str:
    """Origin in one line."""
    origin = provenance.get("source", {})
    if origin.get("origin"):  # what `import --source` or `describe --source` was told
        return str(origin["origin"])
    repository, commit = origin.get("repository", ""), origin.get("commit", "")
    if repository:
        return f"{repository} at {str(commit)[:12]}" if commit else str(repository)
    return str(provenance.get("command") or provenance.get("tool") or "unknown")
