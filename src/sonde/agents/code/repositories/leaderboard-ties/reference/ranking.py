"""Rankings of players by score."""


def ranking(results):
    """From (name, score) in order of arrival to (rank, name), best first."""
    ordered = sorted(results, key=lambda result: -result[1])
    ranked = []
    rank, last = 0, None
    for place, (name, score) in enumerate(ordered, start=1):
        if score != last:
            rank, last = place, score
        ranked.append((rank, name))
    return ranked
