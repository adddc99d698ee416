"""Durations as people read them."""


def show(seconds):
    """Seconds as minutes:seconds, or hours:minutes:seconds from an hour on."""
    seconds = round(seconds)
    sign = "-" if seconds < 0 else ""
    minutes, rest = divmod(abs(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{sign}{hours}:{minutes:02}:{rest:02}"
    return f"{sign}{minutes}:{rest:02}"
