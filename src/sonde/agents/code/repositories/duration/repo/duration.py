"""Durations as people read them."""


def show(seconds):
    """Seconds as minutes:seconds, or hours:minutes:seconds from an hour on."""
    minutes = int(seconds // 60)
    rest = round(seconds % 60)
    return f"{minutes}:{rest}"
