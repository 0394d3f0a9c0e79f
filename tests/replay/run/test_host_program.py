"""Programs of hosts that are read up to the first wait alone."""

from __future__ import annotations

import pytest

from replay.chains.host_program import can_be_captured, typical_program
from replay.schemes.registry import COMPARED, find


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("is_backward", [False, True])
def test_what_lies_behind_a_wait_is_not_read(name: str, is_backward: bool) -> None:
    scheme = find(name)
    whole = typical_program(scheme, is_backward=is_backward)
    until = typical_program(scheme, is_backward=is_backward, until_wait=True)
    if whole is None:
        assert until is None
        return
    assert until is not None
    waits = [place for place, one in enumerate(whole) if not one.launches]
    assert until == (whole[: waits[0] + 1] if waits else whole)
    assert can_be_captured(until) == can_be_captured(whole)
