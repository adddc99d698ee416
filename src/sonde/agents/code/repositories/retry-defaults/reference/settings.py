"""The settings page: what the retries do unless told otherwise."""

DEFAULTS = {
    "attempts": 3,
    "first": 1.0,
    "factor": 2.0,
    "limit": 10.0,
}


def setting(name, given=None):
    """The given value, or the default of that name."""
    return DEFAULTS[name] if given is None else given
