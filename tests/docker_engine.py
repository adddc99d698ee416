"""A Docker engine and a base image for tests: the engine that answers, or one of our own that ends with the tests.

`tests/conftest.py` makes two fixtures of it; a test that uses either is marked `slow` and `docker` by itself:

    async def test_something(docker_engine):          # one for all tests and all workers; DOCKER_HOST is set to it
        await docker.DockerSandbox.open(image=docker_engine.image)

    async def test_its_death(own_docker_engine):      # for this test alone, which may kill it: own_docker_engine.kill()
        await docker.DockerSandbox.open(image=own_docker_engine.image, host=own_docker_engine.host)

An engine of our own needs root and Debian's `docker.io`; it listens on a private socket, keeps its data in a temporary folder
and is ended by its process number. The base image (Debian with bash, Python, pytest, git, curl and procps) is made once by
`debootstrap`, some minutes, and kept as an archive in the user's cache folder; where that cannot be, the official image of
this Python stands in. What cannot be had is a reason to skip.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

IMAGE = "sonde-test-base"
PACKAGES = "python3,python3-pytest,git,curl,procps"
SUITE = "bookworm"
OFFICIAL = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
PATIENCE = 60


class Missing(Exception):  # noqa: N818  # a reason to skip, not an error
    """No engine or no image can be had; says why."""


@dataclasses.dataclass
class Engine:
    """An engine that answers and has the base image.

    Attributes:
        host: Its address, as in DOCKER_HOST; None: as `docker` finds it.
        image: Name of the base image.
        process: The engine, if it is our own.
        folder: Of its data and its log, if it is our own.
    """

    host: str | None
    image: str = IMAGE
    process: subprocess.Popen | None = None
    folder: pathlib.Path | None = None

    def docker(self, *words, **options):
        """Runs `docker` with this engine; its output, stripped."""
        options = {"capture_output": True, **options}
        line = ["docker", *([] if self.host is None else ["--host", self.host]), *words]
        return subprocess.run(line, check=True, **options).stdout.decode(errors="replace").strip()

    def answers(self):
        """Whether it does."""
        try:
            self.docker("version", timeout=PATIENCE)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def containers(self):
        """Names of all containers, running or not."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def kill(self):
        """Kills an engine of our own as nothing can be killed more."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def restart(self):
        """Starts it anew, its data as it was left."""
        assert self.folder is not None
        _end_helpers(self.folder)
        self.process = start(self.folder).process


@contextlib.contextmanager
def shared(folder):
    """One engine for all workers of a test session; the worker that started it waits for the others to be done.

    Args:
        folder: One that all workers of the session, and only they, have in common.
    """
    with (folder / "docker.lock").open("a") as turn, (folder / "docker.users").open("a") as users:
        fcntl.flock(turn, fcntl.LOCK_EX)
        known = folder / "docker.json"
        started = None
        engine = Engine(json.loads(known.read_text())) if known.exists() else Engine(None)
        if not engine.answers():
            if os.environ.get("DOCKER_HOST") and not known.exists():
                raise Missing(f"no engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}")
            engine = started = start(pathlib.Path(tempfile.mkdtemp(prefix="sonde-docker-")))
        try:
            fill(engine)
            known.write_text(json.dumps(engine.host))
            fcntl.flock(users, fcntl.LOCK_SH)
            fcntl.flock(turn, fcntl.LOCK_UN)
            yield engine
        finally:
            if started:
                fcntl.flock(turn, fcntl.LOCK_EX)  # nobody joins any more
                fcntl.flock(users, fcntl.LOCK_EX)  # and all who had joined have left
                known.unlink(missing_ok=True)
                stop(started)


@contextlib.contextmanager
def own(megabytes=None):
    """An engine of our own, with the base image, that nobody else uses.

    Args:
        megabytes: How large its disk is; None: as large as that of the machine.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sonde-docker-"))
    if megabytes and os.geteuid() == 0:
        (folder / "data").mkdir()
        size = f"size={megabytes}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "sonde-test", folder / "data"], check=True)
    engine = start(folder)
    try:
        fill(engine)
        yield engine
    finally:
        stop(engine)


def start(folder, *options):
    """Starts an engine with its data in a folder; it ends with this process at the latest."""
    if os.geteuid() != 0:
        raise Missing("no Docker engine answers, and only root could start one")
    if shutil.which("docker") is None or shutil.which("dockerd") is None:
        raise Missing("no Docker engine answers, and there is none to start: apt install docker.io")
    host, log = f"unix://{folder}/docker.sock", folder / "dockerd.log"
    line = ["setpriv", "--pdeathsig", "TERM", "dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec"]
    line += ["--pidfile", folder / "docker.pid", "--host", host, "--iptables=false", "--bridge=none", *options]
    (folder / "docker.pid").unlink(missing_ok=True)
    with log.open("ab") as written:
        process = subprocess.Popen(
            line, stdout=written, stderr=written, stdin=subprocess.DEVNULL, start_new_session=True
        )
    engine = Engine(host, process=process, folder=folder)
    end = time.monotonic() + PATIENCE
    while not engine.answers():
        if process.poll() is not None or time.monotonic() > end:
            stop(engine)
            raise Missing(f"a Docker engine would not start here, see {log}")
        time.sleep(0.2)
    return engine


def stop(engine):
    """Ends an engine of our own, and removes its data."""
    assert engine.process is not None
    assert engine.folder is not None
    if engine.process.poll() is None:
        engine.process.terminate()
        try:
            engine.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            engine.kill()
    _end_helpers(engine.folder)
    log = (engine.folder / "dockerd.log").read_bytes()
    shutil.rmtree(engine.folder, ignore_errors=True)
    if engine.process.returncode not in (0, -signal.SIGKILL):
        engine.folder.mkdir(exist_ok=True)
        (engine.folder / "dockerd.log").write_bytes(log)


def _end_helpers(folder):
    """Ends what an engine that was killed left behind: its containerd, shims and mounts, told by its folder."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/exec".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
        if (point := line.split()[4]).startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)


def fill(engine):
    """Gives an engine the base image, if it has not got it."""
    try:
        engine.docker("image", "inspect", IMAGE)
    except subprocess.CalledProcessError:
        try:
            with archive().open("rb") as packed:
                engine.docker("import", "-", IMAGE, stdin=packed)
        except Missing as why:
            try:
                engine.docker("pull", "--quiet", OFFICIAL)
                engine.docker("tag", OFFICIAL, IMAGE)
            except subprocess.CalledProcessError as error:
                said = error.stderr.decode(errors="replace").strip()
                raise Missing(f"{why}, and {OFFICIAL} cannot be fetched: {said}") from None


@functools.cache
def archive():
    """The base image as an archive, made if it is not in the cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sonde" / "docker"
    made = cache / f"{SUITE}-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:12]}.tar"
    if made.exists():
        return made
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise Missing("the base image is made by root with debootstrap (apt install debootstrap)")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not made.exists():
            _bootstrap(made)
    return made


def _bootstrap(made):
    with tempfile.TemporaryDirectory(prefix="sonde-base-") as folder:
        root = pathlib.Path(folder) / "root"
        line = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root]
        ran = subprocess.run(line, capture_output=True, check=False)
        if ran.returncode != 0:
            said = (ran.stderr.strip() or ran.stdout.strip()).decode(errors="replace").splitlines()
            raise Missing(f"debootstrap could not make a base image: {said[-1] if said else 'it does not say why'}")
        (root / "usr/bin/python").symlink_to("python3")
        for left in ("var/cache/apt", "var/lib/apt/lists"):
            shutil.rmtree(root / left, ignore_errors=True)
        draft = made.with_suffix(f".{os.getpid()}")
        subprocess.run(["tar", "--numeric-owner", "-C", root, "-cf", draft, "."], check=True)
        draft.rename(made)
