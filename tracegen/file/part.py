"""Choice of a part of a trace: layers by position, tokens by row."""

from collections.abc import Iterable, Sequence

from tracegen.shared.errors import UserError, check_kind


def chosen_layers(layers: Sequence[int] | None, num_layers: int, where: str) -> list[int]:
    """Positions of the chosen layers.

    Parameters
    ----------
    layers
        Positions among the MoE layers, ascending; None for all.
    num_layers
        Of the trace.
    where
        Name of the trace in errors.

    Raises
    ------
    UserError
        If one does not exist, or they do not ascend.
    """
    if layers is not None:
        check_kind("layers", layers, Iterable, "positions among the MoE layers, such as [3]")
    chosen = list(range(num_layers)) if layers is None else [int(layer) for layer in layers]
    if any(not 0 <= layer < num_layers for layer in chosen) or chosen != sorted(set(chosen)):
        msg = f"{where}: layers {chosen} must ascend within 0 to {num_layers - 1} (positions among the MoE layers)"
        raise UserError(msg)
    return chosen


def chosen_rows(tokens: slice | None, num_tokens: int, where: str) -> slice:
    """Chosen token rows, as a range within the trace.

    Parameters
    ----------
    tokens
        Any slice without stride; None for all.
    num_tokens
        Of the trace.
    where
        Name of the trace in errors.

    Raises
    ------
    UserError
        If there is a stride.

    Examples
    --------
    >>> chosen_rows(slice(-2, None), 10, "a.h5")
    slice(8, 10, None)
    """
    check_kind("tokens", tokens, (slice, type(None)), "a range of rows, such as slice(0, 100)")
    start, stop, stride = (tokens or slice(None)).indices(num_tokens)
    if stride != 1:
        msg = f"{where}: tokens must be a range without stride, not {tokens}"
        raise UserError(msg)
    return slice(start, max(start, stop))
