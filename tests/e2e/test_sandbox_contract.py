"""Every kind of sandbox keeps the same contract, on the real thing; the contract notices what does not."""

import contextlib
import functools
import os
import pathlib
import shutil

import pytest

from sonde import testing
from sonde.agents.sandbox import base, bubblewrap, choosing, docker_engine
from sonde.testing import attacks, conformance, sandboxes


def descriptors():
    """What this process holds open of a sandbox: its namespaces and its working folder."""
    found = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := os.readlink(entry)).startswith(("mnt:", "user:")) or base.WORKSPACE in target:  # noqa: PTH115
                found.add(f"{entry.name} {target}")
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap")
async def test_bubblewrap_keeps_the_contract():
    await testing.assert_sandbox_conforms(choosing.choose("bubblewrap"), left=descriptors)


async def test_docker_keeps_the_contract(docker_engine):
    def containers():
        form, mine = "{{.Names}}", f"label={LABEL}={owner()}"
        return docker_engine.docker("ps", "--all", "--filter", mine, "--format", form).split()

    factory = functools.partial(choosing.choose("docker"), image=docker_engine.image)
    await testing.assert_sandbox_conforms(factory, left=containers, container=True)
    assert docker_engine.docker("volume", "ls", "--quiet", "--filter", "name=sonde") == ""


LABEL, owner = docker_engine.LABEL, docker_engine.owner


class Careless(bubblewrap.BubblewrapSandbox):
    """A sandbox that keeps less than it promises."""

    async def run(self, command, *, limits=None):
        got = await super().run(command, limits=base.Limits(seconds=3))
        return base.Result(got.output, got.exit_code or 0, False, False, got.seconds)

    async def put(self, files):
        with contextlib.suppress(Exception):
            await super().put(files)

    async def get(self, path):
        return b""


@contextlib.asynccontextmanager
async def careless(*, limits):
    sandbox = await Careless.open(limits=base.Limits(seconds=3))
    async with sandbox:
        yield sandbox


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap")
async def test_the_contract_finds_out_a_careless_sandbox():
    report = await testing.check_sandbox(careless, patience=10)
    broken = {one.name for one in report.broken}
    assert broken >= {
        "files",
        "paths",
        "time_limit",
        "memory_limit",
        "process_limit",
        "disk_limit",
        "output_limit",
    }
    assert {one.name for one in report.skipped} == {"nothing_left", "contains"}
    assert "harmless_text" not in broken
    with pytest.raises(AssertionError, match="checks found something"):
        conformance.assert_kept(report)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap")
async def test_the_contract_tries_the_attacks_when_asked(monkeypatch):
    monkeypatch.setattr(attacks, "ATTACKS", attacks.ATTACKS[::30])
    monkeypatch.setattr(sandboxes, "_CHECKS", {"contains": sandboxes.contains})
    good = await testing.check_sandbox(choosing.choose("bubblewrap"), attacks=True)
    assert [one.outcome for one in good.verdicts] == ["kept"]
    bad = await testing.check_sandbox(careless, attacks=True)
    assert "is not contained" in bad.broken[0].detail
