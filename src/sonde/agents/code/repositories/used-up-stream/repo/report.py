"""A short report on sensor readings."""


def report(readings):
    """Count, mean and spread (largest minus smallest) of the readings."""
    count = sum(1 for _ in readings)
    mean = sum(readings) / count
    spread = max(readings) - min(readings)
    return {"count": count, "mean": mean, "spread": spread}
