"""The keeper: the first process of a sandbox's container, which waits, counts and ends what commands leave behind.

It is a bash that reads requests from Sonde and answers each with one line of numbers. It runs as another user than the
commands, who can therefore neither signal nor trace it; as the first process of its process namespace it is also the
one that a `kill -9 -1` inside cannot reach.

1. `look PID` counts: tasks in the container (the kernel's own count of its control group, so that no process can hide
   by forking while it is counted), processes killed for want of memory, the most memory used, and whether PID is there.
2. `end` kills every other process. `kill(-1)` holds the kernel's list of tasks while it signals all of it, and a process
   that has been signalled cannot fork any more: nothing can outrun it.
3. `clean` empties the scratch folders; only used where no command can replace the programs this takes.

A request costs about a millisecond and starts no process (but `clean`, if there is something to remove). When Sonde
ends, however it ends, the stream of requests ends, the keeper with it, and with that the kernel ends the container. An
engine that was killed passes nothing on any more: after 25 s without a sign of life (a thread gives one every 5 s) the
keeper ends as well.
"""

import asyncio
import contextlib
import dataclasses
import os
import threading

from sonde.agents.sandbox import base, docker_engine
from sonde.core import errors

BEAT = 5
"""Seconds between two signs of life that Sonde gives."""

SILENCE = 5 * BEAT
"""Seconds without any after which the keeper ends."""

_SCRIPT = r"""
exec 2>/dev/null
shopt -s nullglob dotglob
groups=/sys/fs/cgroup
if [[ -r $groups/memory/memory.oom_control ]]; then
  current=$groups/pids/pids.current events=$groups/memory/memory.oom_control most=$groups/memory/memory.max_usage_in_bytes
  parts=$groups/memory/memory.stat
else
  current=$groups/pids.current events=$groups/memory.events most=$groups/memory.peak parts=$groups/memory.stat
fi
while read -r -t SILENCE verb given; do
  alive=0 tasks=0 killed=-1 peak=0 files=0
  case $verb in
    beat) continue ;;
    look) [[ -e /proc/$given ]] && alive=1 ;;
    end) kill -9 -1 ;;
    clean)
      for folder in $given; do
        found=("$folder"/*)
        if (( ${#found[@]} )); then (echo 1000 >/proc/self/oom_score_adj; exec rm -rf -- "$folder"); fi
      done
      while read -r name count; do [[ $name == shmem ]] && files=$count; done <$parts ;;
  esac
  read -r tasks <$current || { all=(/proc/[0-9]*); tasks=${#all[@]}; }
  if [[ -r $events ]]; then
    killed=0
    while read -r name count; do [[ $name == oom_kill ]] && killed=$count; done <$events
  fi
  [[ -r $most ]] && read -r peak <$most
  printf '%d %d %d %d %d\n' "$tasks" "$killed" "$peak" "$alive" "$files"
done
kill -9 -1
""".replace("SILENCE", str(SILENCE))
WORDS = ("-c", _SCRIPT, "sonde")
"""Arguments of the bash that is the keeper."""


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What the keeper counted.

    Attributes:
        tasks: Processes and threads in the container, the keeper among them.
        killed: How many were killed for want of memory since the container started; -1 if the kernel does not say.
        peak: The most memory used at once since then, in bytes; 0 if the kernel does not say.
        alive: Whether the process asked for is there.
        files: Bytes of files in memory; counted by `clean` only.
    """

    tasks: int
    killed: int
    peak: int
    alive: bool
    files: int = 0


class Gone(errors.SandboxError):
    """The container has ended, or the engine no longer passes anything on."""


class Keeper:
    """The keeper of one container, by the `docker` that is attached to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Takes over a `docker run --interactive` or `docker attach`."""
        assert process.stdin
        self._process = process
        self._turn = asyncio.Lock()
        self._closed = threading.Event()
        # A descriptor of its own, which cannot become another file's while the thread lives.
        pipe = os.dup(process.stdin.get_extra_info("pipe").fileno())
        self._beating = threading.Thread(target=_beat, args=(pipe, self._closed), daemon=True, name="sonde-keeper")
        self._beating.start()

    async def ask(self, request: str, *, deadline: float = docker_engine.DEADLINE) -> Counts:
        """Sends a request and waits for its answer.

        Raises:
            Gone: There is none.
        """
        assert self._process.stdin
        assert self._process.stdout
        async with self._turn:
            try:
                async with asyncio.timeout(deadline):
                    self._process.stdin.write(f"{request}\n".encode())
                    await self._process.stdin.drain()
                    line = await self._process.stdout.readline()
            except (TimeoutError, OSError, ValueError) as error:
                raise Gone(f"the container of the sandbox does not answer: {error!r}") from error
        words = line.split()
        if len(words) != 5:
            raise Gone("the container of the sandbox has ended")
        tasks, killed, peak, alive, files = map(int, words)
        return Counts(tasks, killed, peak, bool(alive), files)

    async def last_words(self) -> str:
        """What the attached `docker` complained of, once it has ended."""
        assert self._process.stderr
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                return base.harmless(await self._process.stderr.read(65536)).strip()
        return ""

    async def close(self) -> None:
        """Lets go: the stream of requests ends, and the keeper with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._closed.set()
        await asyncio.to_thread(self._beating.join)
        await self._process.wait()


def _beat(pipe: int, closed: threading.Event) -> None:
    """Says every few seconds that Sonde is there, however busy its event loop may be."""
    try:
        while not closed.wait(BEAT):
            with contextlib.suppress(BlockingIOError):  # requests enough are waiting to be read
                os.write(pipe, b"beat\n")
    except OSError:  # whoever read it has ended
        pass
    finally:
        os.close(pipe)
