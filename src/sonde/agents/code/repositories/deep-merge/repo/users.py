"""Settings of users."""

from merging import merge

DEFAULTS = {
    "server": {"host": "localhost", "port": 80},
    "paths": ["a", "b"],
    "debug": False,
}


def settings_of(overrides):
    """A user's settings."""
    return merge(DEFAULTS, overrides)
