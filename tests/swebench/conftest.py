"""Instances for SWE-bench's tests: built once a session on a real Docker engine, judged by the real harness."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from sonde.agents.code.swebench import harness, instances
from sonde.agents.sandbox import docker_engine as engines


def repositories():
    """The module beside this file, which `--import-mode=importlib` would not find by its name."""
    place = pathlib.Path(__file__).with_name("repositories.py")
    found = importlib.util.spec_from_file_location("swebench_repositories", place)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def graded():
    """The Python that has SWE-bench's harness."""
    python = os.environ.get(harness.VARIABLE) or sys.executable
    line = [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('swebench') is None)"]
    if subprocess.run(line, check=False).returncode != 0:
        pytest.skip('the package swebench is not installed: pip install "sonde[swebench]"')
    return python


@pytest.fixture(scope="session")
def rows_file(docker_engine, graded, tmp_path_factory):
    """A file with the rows of three instances, whose images are there."""
    host = [] if docker_engine.host is None else ["--host", docker_engine.host]
    rows = repositories().made(docker_engine.image, docker=("docker", *host))
    file = tmp_path_factory.mktemp("rows") / "rows.json"
    file.write_text(json.dumps(rows))
    return file


@pytest.fixture(scope="session")
def tasks(rows_file):
    """The instances by the name of the code task they are made from."""
    found = instances.swebench_verified_tasks(rows_file)
    return {task.repo.partition("/")[2]: task for task in found}


@pytest.fixture
def nothing_left(docker_engine):
    """Sees that no container of this process, or of one that is gone, stays, and no volume at all."""

    def left():
        form = '{{.ID}} {{.Label "' + engines.LABEL + '"}}'
        listed = docker_engine.docker(
            "ps", "--all", "--no-trunc", "--filter", f"label={engines.LABEL}", "--format", form
        )
        lines = listed.splitlines()
        return [*engines.stale(lines), *(line for line in lines if line.endswith(f" {engines.owner()}"))]

    volumes = set(docker_engine.docker("volume", "ls", "--quiet").split())
    yield
    end = time.monotonic() + 30
    while left() and time.monotonic() < end:
        time.sleep(0.2)
    assert left() == []
    assert set(docker_engine.docker("volume", "ls", "--quiet").split()) <= volumes
