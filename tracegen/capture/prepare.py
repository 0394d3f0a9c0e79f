"""Choice of the modules of a model that are to be watched, and refusal where there are none."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from tracegen.capture.sites import LayerStack, Site

MIN_TRANSFORMERS = 5
"""Major version from which experts modules receive ids and weights as arguments."""
NEWEST = (5, 24)
"""Release of transformers up to which capture was tried."""
_RANGE = f"{MIN_TRANSFORMERS}.0 to {NEWEST[0]}.{NEWEST[1]}"
TRIED = f"(tried with transformers {_RANGE})"
"""End of the messages on what cannot be told apart."""
_log = logging.getLogger(__name__)
INSTALL = "pip install 'moereplay[capture]'"


@dataclass(frozen=True)
class WatchedModel:
    """A model and the places where its routing is read."""

    model: Any
    stacks: list[LayerStack]
    sites: list[Site]
    """Of all stacks, layers ascending."""
    notes: str
    """Notes for a reader of the trace."""


def prepare(model: Any, fallback: str | None) -> WatchedModel:
    """Find the sites of a model.

    Parameters
    ----------
    model
        A transformers model, maybe wrapped (PEFT, data-parallel).
    fallback
        ``"gate-logits"`` if routing may be derived from gate modules.

    Raises
    ------
    UserError
        If torch or transformers are missing or too old, this is no model, or it has no
        routing that can be seen.
    """
    version = require_transformers()
    from tracegen.capture.sites import find_sites, find_stacks, is_torch_module

    if fallback not in (None, "gate-logits"):
        raise unknown("fallback", fallback, ["gate-logits"])
    if not is_torch_module(model):
        msg = f"a model must be given to capture, not {type(model).__name__}"
        raise UserError(msg)
    model = _unwrap(model)
    kind = type(model).__name__
    notes = note_on_version(version)
    if notes:
        _log.warning("%s", notes)
    if fallback is not None:
        from tracegen.capture.fallback import find_gates

        sites = find_gates(model)
        notes += f" Expert ids were derived from gate modules (transformers {version})."
    elif release(version)[0] < MIN_TRANSFORMERS:
        msg = (
            f"transformers {version} is installed, capture needs {MIN_TRANSFORMERS} or newer, "
            "where experts receive their ids; fallback='gate-logits' derives them from the gates "
            "of some families instead"
        )
        raise UserError(msg)
    else:
        sites = find_sites(model)
    if not sites:
        msg = (
            f"{kind} has no module whose routing can be seen: no experts that receive ids and "
            "weights, no router that is known; is it a Mixture-of-Experts model?"
        )
        raise UserError(msg)
    stacks, outside = find_stacks(model, sites)
    if outside:
        notes += f" Not recorded, since not in the text decoder: {', '.join(outside[:8])}."
    ordered = sorted((site for stack in stacks for site in stack.sites), key=lambda s: s.layer)
    for stack in stacks:
        stack.sites.sort(key=lambda s: s.layer)
    return WatchedModel(model, stacks, ordered, notes.strip())


def require_transformers() -> str:
    """Version of transformers.

    Raises
    ------
    UserError
        If it or torch is missing, saying how to install them.
    """
    try:
        import torch  # noqa: F401 (whether it is there)
        import transformers
    except ImportError as error:
        msg = f"capture needs torch and transformers ({error}): {INSTALL}"
        raise UserError(msg) from error
    return str(transformers.__version__)


def release(version: str) -> tuple[int, ...]:
    """Release of a version, as two numbers.

    Parameters
    ----------
    version
        Such as ``5.24.0`` or ``5.25.0.dev0``.

    Examples
    --------
    >>> release("5.24.0") < release("5.100.0.dev0")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def note_on_version(version: str) -> str:
    """Sentence on a transformers that nobody has tried capture with, or nothing.

    Parameters
    ----------
    version
        Of transformers.

    Examples
    --------
    >>> note_on_version("5.25.1")
    'transformers 5.25.1 is newer than what capture was tried with (5.0 to 5.24).'
    >>> note_on_version("5.24.2")
    ''
    """
    if release(version) <= NEWEST:
        return ""
    return f"transformers {version} is newer than what capture was tried with ({_RANGE})."


def _unwrap(model: Any) -> Any:
    """The transformers model inside PEFT, DataParallel or DistributedDataParallel."""
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    inner = getattr(model, "module", None)
    return inner if inner is not None and not hasattr(model, "config") else model
