"""The order in which packages are built."""


def order(needs):
    """From package to what it needs, to the packages in an order that can be built."""
    done = []
    for package in sorted(needs):
        _visit(package, needs, done, ())
    return done


def _visit(package, needs, done, above):
    if package in above:
        raise ValueError("packages need each other: " + " -> ".join([*above, package]))
    if package in done:
        return
    for other in sorted(needs.get(package, ())):
        _visit(other, needs, done, (*above, package))
    done.append(package)
