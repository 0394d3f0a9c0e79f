"""The product's error for a user's mistake, as this package raises it."""

from tracegen.errors import UserError as UserError
from tracegen.errors import check_kind as check_kind
from tracegen.errors import unknown as unknown
