"""What can go wrong."""


class LedgerError(ValueError):
    """A booking that is refused."""
