"""Merging of half-open intervals (start, end)."""


def merge(intervals):
    """The union of the intervals, as few as possible, in ascending order."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def free(intervals, start, end):
    """What remains of start to end when the intervals are taken out."""
    gaps = []
    for left, right in merge(intervals):
        if left > start:
            gaps.append((start, min(left, end)))
        start = max(start, right)
        if start >= end:
            return gaps
    return [*gaps, (start, end)]
