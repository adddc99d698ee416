"""What every test runs under: runtime shape checks, one thread per worker, fixed seeds, no model hub.

The import hook must be in place before `sonde` is first imported; it then also covers the modules that `sonde` loads
lazily. It checks plain functions, generators, methods and dataclass fields. Coroutine functions pass through unchecked.
`SONDE_SHAPES=off` leaves it out, as `make test-slow` does: checking every call doubles the time of the hundreds of small
studies there, whose code the fast tests run under the checks.
"""

import contextlib
import gc
import importlib.util
import os
import pathlib
import random
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import anyio.abc  # nnsight gives every class a `save`, which stops anyio's classes from being made later
import anyio.streams.file
import anyio.streams.tls  # noqa: F401
import beartype
import beartype.roar
import hypothesis
import jaxtyping
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # read by torch when, and only when, a test imports it
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it, and all they start
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

hypothesis.settings.register_profile("sonde", deadline=None, derandomize=True)
hypothesis.settings.load_profile("sonde")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, except for methods that mention `Self`, which it cannot check outside their class."""
    try:
        return beartype.beartype(function)
    except beartype.roar.BeartypeDecorHintPep673Exception:
        return function


# The hook names its checker by import path, and this file has none under --import-mode=importlib.
_checker = types.ModuleType("sonde_shape_checker")
_checker.check = check  # type: ignore[attr-defined]
sys.modules["sonde_shape_checker"] = _checker


def has_shapes(hint: Any) -> bool:
    """Whether a shape is written anywhere in an annotation; one that is still a string may have one."""
    if isinstance(hint, str) or getattr(hint, "__module__", "").startswith("jaxtyping"):
        return True
    return any(has_shapes(part) for part in typing.get_args(hint))


def jaxtyped(function: Any = None, /, *, typechecker: Any = None) -> Any:
    """As jaxtyping's own, which takes 20 microseconds a call, but only where there are shapes to compare."""
    if function is None:
        return lambda found: jaxtyped(found, typechecker=typechecker)
    if isinstance(function, types.FunctionType) and not any(map(has_shapes, function.__annotations__.values())):
        return typechecker(function)
    return jaxtyping_jaxtyped(function, typechecker=typechecker)


jaxtyping_jaxtyped, jaxtyping.jaxtyped = jaxtyping.jaxtyped, jaxtyped
assert "sonde" not in sys.modules, "sonde was imported before its shape checks could be installed"
if os.environ.get("SONDE_SHAPES") != "off":
    jaxtyping.install_import_hook("sonde", "sonde_shape_checker.check")


@pytest.fixture(scope="session", autouse=True)
def one_thread_per_worker():
    """Two workers with a thread pool each would fight for the cores, and thread count changes the last bits."""
    torch = sys.modules.get("torch")
    if torch is not None and "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Each test starts from the same random state, whichever tests ran before it."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def taught():
    """Makes a model know pairs of programs by heart, so that there is something to trace."""

    def teach(model, tasks):
        """Fits the unembedding so that the model gives the expected answer to every prompt: fewer prompts than dimensions."""
        import torch

        asked = dict(zip([row for one in tasks for row in (one.clean, one.counterfactual)],
                         [token for one in tasks for token in one.expected], strict=True))  # fmt: skip
        with torch.no_grad():
            ends = (
                model.hf.model(input_ids=torch.tensor(list(asked)), use_cache=False).last_hidden_state[:, -1].double()
            )
            wanted = 10 * torch.nn.functional.one_hot(torch.tensor(list(asked.values())), model.cfg.d_vocab).double()
            model.hf.lm_head.weight.copy_((torch.linalg.pinv(ends) @ wanted).T)

    return teach


def pytest_collection_finish() -> None:
    """All that collecting made stays until the end: nobody need look through it again, which takes half a second each time
    a Model is closed."""
    gc.collect()
    gc.freeze()


def _engines() -> types.ModuleType:
    """The module beside this file, which `--import-mode=importlib` would not find by its name."""
    if (known := sys.modules.get("docker_engine")) is not None:
        return known
    found = importlib.util.spec_from_file_location(
        "docker_engine", pathlib.Path(__file__).with_name("docker_engine.py")
    )
    assert found is not None
    assert found.loader is not None
    sys.modules[found.name] = module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory):
    """A Docker engine with a base image, one for all workers; see `docker_engine.py` beside this file."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    engines = _engines()
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(engines.shared(folder))
        except engines.Missing as why:
            pytest.skip(str(why))
        if engine.host is not None:
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_HOST", engine.host)
        yield engine


@pytest.fixture
def own_docker_engine():
    """A Docker engine that one test alone uses, and may kill."""
    with _own_engine() as engine:
        yield engine


@pytest.fixture
def small_docker_engine():
    """A Docker engine that one test alone uses, with a disk so small that it can be filled."""
    with _own_engine(megabytes=600) as engine:
        yield engine


@contextlib.contextmanager
def _own_engine(**options: int) -> Iterator[Any]:
    engines = _engines()
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(engines.own(**options))
        except engines.Missing as why:
            pytest.skip(str(why))
        yield engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use a Docker engine are slow. Slow tests may take an hour, unless they say otherwise; the one that may take longest begins, so that no worker
    is left alone with it at the end."""
    for item in items:
        if {"docker_engine", "own_docker_engine", "small_docker_engine"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
    items.sort(key=lambda item: -next((mark.args[0] for mark in item.iter_markers("timeout")), 0))
