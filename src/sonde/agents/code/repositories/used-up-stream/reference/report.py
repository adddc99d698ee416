"""A short report on sensor readings."""


def report(readings):
    """Count, mean and spread (largest minus smallest) of the readings."""
    readings = list(readings)
    if not readings:
        return {"count": 0, "mean": None, "spread": None}
    count = len(readings)
    mean = sum(readings) / count
    spread = max(readings) - min(readings)
    return {"count": count, "mean": mean, "spread": spread}
