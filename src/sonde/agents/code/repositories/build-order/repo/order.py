"""The order in which packages are built."""


def order(needs):
    """From package to what it needs, to the packages in an order that can be built."""
    done = []
    for package in sorted(needs):
        _visit(package, needs, done)
    return done


def _visit(package, needs, done):
    for other in sorted(needs[package]):
        if other in needs:
            _visit(other, needs, done)
    done.append(package)
