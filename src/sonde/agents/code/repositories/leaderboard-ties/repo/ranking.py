"""Rankings of players by score."""


def ranking(results):
    """From (name, score) in order of arrival to (rank, name), best first."""
    ordered = sorted(results, key=lambda result: result[1])[::-1]
    return [(rank, name) for rank, (name, _) in enumerate(ordered, start=1)]
