"""The product's error for a user's mistake, as this package raises it."""

from tracegen.shared.errors import UserError as UserError
from tracegen.shared.errors import check_kind as check_kind
from tracegen.shared.errors import unknown as unknown
