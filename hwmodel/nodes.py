"""Names of several nodes: ``dgx-h100-x4`` is four ``dgx-h100``, joined by their network cards."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from hwmodel.errors import UserError

LISTED = ("dgx-h100-x2", "dgx-h100-x4", "dgx-h100-x8")
"""Names that lists show; any other number of nodes, and of any preset of one domain, does too."""

MOST_GPUS = 1 << 16
"""Of all nodes together: what `hwmodel.quantity.Units` counts."""

_NAME = re.compile(r"(?P<base>.+)-x(?P<count>[0-9]+)")


def base_of(name: str, presets: Collection[str]) -> str | None:
    """Preset that a name repeats, or None if it is not a name of several nodes."""
    found = _NAME.fullmatch(name)
    return found["base"] if found and found["base"] in presets else None


def document(name: str, base: str, num_domains: int, gpus_per_domain: int) -> dict[str, Any]:
    """Description of several nodes, as a file would have it.

    Parameters
    ----------
    name
        Such as ``dgx-h100-x4``.
    base
        The preset that it repeats.
    num_domains, gpus_per_domain
        NVLink domains of the base, and GPUs of one.

    Raises
    ------
    UserError
        If the base is several nodes already, or the number is not one of nodes.
    """
    if num_domains != 1:
        message = f"system {name!r}: {base} has {num_domains} NVLink domains; -xN repeats a system of one"
        raise UserError(message)
    digits = name.removeprefix(f"{base}-x")
    most = MOST_GPUS // gpus_per_domain
    is_number = len(digits) <= len(str(most)) and not digits.startswith("0")
    if not is_number or int(digits) > most:
        message = f"system {name!r}: N of {base}-xN is a number of nodes, 1 to {most}, such as 4"
        raise UserError(message)
    count = int(digits)
    return {
        "base": base,
        "name": name,
        "summary": f"{count} x {base}, joined by a network card for each GPU; any N: {base}-xN",
        "fabric": {
            "num_domains": {
                "value": count,
                "source": f"{count} of {base}, by its name",
                "confidence": "high",
                "spread": "exact",
            }
        },
    }
