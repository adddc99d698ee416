"""Which circuit finders are there, and how is one run by name?

    scores = registry.find(model, pairs, metric="logit_diff", method="eap-ig")

    @registry.register("my-method")
    def mine(model, pairs, metric, **options):
        \"\"\"One line that says what it does.\"\"\"
        …
        return scores.Scores(…)

The finders of the house are the files in `methods`; they are imported when a method is first asked for.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from sonde.circuits import metrics as circuits_metrics
from sonde.circuits import pairs as circuits_pairs
from sonde.circuits import scores as circuits_scores
from sonde.core import errors
from sonde.models import model as models_model

DEFAULT = "eap-ig"
_methods: dict[str, "Method"] = {}


@runtime_checkable
class Method(Protocol):
    """A circuit finder."""

    def __call__(
        self,
        model: models_model.Model,
        pairs: circuits_pairs.Pairs,
        metric: circuits_metrics.Metric,
        **options: Any,
    ) -> circuits_scores.Scores:
        """Scores the edges or nodes of a model by what they do for a metric on pairs of inputs."""
        ...


def register(name: str, *, replace: bool = False) -> Callable[[Any], Any]:
    """A decorator that makes a circuit finder known under a name.

    Raises:
        RequestError: The name is taken, or the finder has no docstring to be listed with.
    """

    def add(method: Any) -> Any:
        if name in _methods and not replace:
            raise errors.RequestError(f"there is a method {name!r} already: choose another name, or pass replace=True")
        if not (method.__doc__ or "").strip():
            raise errors.RequestError(f"method {name!r} has no docstring: its first line is what the list shows")
        _methods[name] = method
        return method

    return add


def methods() -> dict[str, str]:
    """Every method's name and what it does, sorted by name."""
    _load()
    return {name: (method.__doc__ or "").strip().splitlines()[0] for name, method in sorted(_methods.items())}


def get(name: str) -> Method:
    """The method of this name.

    Raises:
        RequestError: There is none; suggests the nearest.
    """
    _load()
    if name not in _methods:
        known = sorted(_methods)
        raise errors.RequestError(
            f"no method {name!r}{errors.suggest(name, known)} Methods are {', '.join(known)}; "
            "your own is added with registry.register"
        )
    return _methods[name]


def find(
    model: models_model.Model,
    pairs: circuits_pairs.Pairs,
    *,
    metric: Any = "logit_diff",
    method: str = DEFAULT,
    **options: Any,
) -> circuits_scores.Scores:
    """Scores the edges or nodes of a model by the method of this name.

    Args:
        model: The model.
        pairs: Clean and corrupt inputs.
        metric: What they are judged by: a name, a Metric, or a function.
        method: Which finder.
        **options: Of the finder: `ablation`, `batch_size`, `seed`, `tell`, and its own.
    """
    return get(method)(model, pairs, circuits_metrics.get(metric), **options)


def _load() -> None:
    package = importlib.import_module("sonde.circuits.methods")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
        importlib.import_module(f"{package.__name__}.{module.name}")
