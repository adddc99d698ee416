"""`import sonde` is light: no heavy package, no writing, no network, no global changed."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "jaxtyping", "safetensors", "matplotlib", "plotly", "pyarrow")


def in_fresh_python(code: str):
    """Run code in a new interpreter and give back the JSON it prints last."""
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_sonde_loads_no_heavy_package():
    loaded = in_fresh_python(f"import json, sys, sonde; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))")
    assert loaded == []


def test_listing_the_names_of_sonde_loads_no_heavy_package():
    loaded = in_fresh_python(
        f"import json, sys, sonde; dir(sonde); print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    assert loaded == []


def test_importing_sonde_neither_writes_nor_connects():
    events = in_fresh_python("""
import json, sys
seen = []
def watch(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append(f"open {args[0]}")
    elif event.startswith(("socket.connect", "socket.getaddrinfo", "subprocess.", "os.mkdir", "os.remove")):
        seen.append(event)
sys.addaudithook(watch)
import sonde
print(json.dumps(seen))
""")
    assert events == []


def test_importing_sonde_changes_no_global():
    changed = in_fresh_python("""
import json, logging, os, random, signal, sys, warnings
def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "search path": list(sys.path),
        "warning filters": list(map(str, warnings.filters)),
        "log handlers": list(map(str, logging.getLogger().handlers)),
        "random state": str(random.getstate()),
        "excepthook": str(sys.excepthook),
        "interrupt": str(signal.getsignal(signal.SIGINT)),
    }
before = state()
import sonde
after = state()
print(json.dumps([name for name in before if before[name] != after[name]]))
""")
    assert changed == []


@pytest.mark.parametrize("room", ["core", "store", "report"])
def test_the_torch_free_rooms_load_no_torch(room):
    loaded = in_fresh_python(f"""
import importlib, json, pkgutil, sys
room = importlib.import_module("sonde.{room}")
for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
    importlib.import_module(module.name)
print(json.dumps([m for m in ("torch", "transformers") if m in sys.modules]))
""")
    assert loaded == []
