"""The product's error for a user's mistake, as this package raises it."""

from __future__ import annotations

from numbers import Integral

from tracegen.shared.errors import UserError as UserError
from tracegen.shared.errors import check_kind as check_kind
from tracegen.shared.errors import quote_names as quote_names
from tracegen.shared.errors import unknown as unknown
from tracegen.shared.errors import value_text as value_text


class RefusedError(UserError):
    """Something that a scheme, or the machine, cannot do, and others may.

    Attributes
    ----------
    reason
        Why, for lists that name the scheme anyway.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str]]:
        return type(self), (str(self), self.reason)


class UnreadableError(UserError):
    """Failure to read a recording now, which is no property of what asks for it."""


def check_jobs(jobs: object) -> None:
    """Refuse a number of processes that is none.

    Raises
    ------
    UserError
        If it is no whole number, or less than 1.
    """
    if not isinstance(jobs, Integral) or int(jobs) < 1:
        message = f"jobs must be at least 1, a whole number, not {value_text(jobs)}"
        raise UserError(message)
