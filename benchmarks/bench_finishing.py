"""Does the time to finish a run, and to look at it, grow with its episodes or with their square?

    python benchmarks/bench_finishing.py [--sizes 500 2000 10000] [--repeats 5] [--only finishing]

Runs of 500, 2,000 and 10,000 short episodes are written, and each action is timed on each of them in turn, several times;
the shortest time counts, which other work on the machine disturbed least. In brackets stands processor time, which it changes
less still. The bar: finishing 2,000 episodes takes at most 4.4 times as long as 500. Four times the episodes would take 16
times as long if each looked at all the others.
"""

import argparse
import contextlib
import io
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable

import shared

from sonde import store
from sonde.agents import plans, playing, plays
from sonde.store import documents

BAR = 4.4
STEPS = 4


def written(parent: pathlib.Path, count: int) -> store.Run:
    """A run of that many closed episodes; all but one are copies."""
    run = store.Run.create(parent, kind=playing.KIND, model="none", seed=0, id=f"run-{count}")
    with run.new_episode(metadata={"task_id": "dog"}) as writer:
        for _ in range(STEPS):
            writer.append_step({"calls": [], "metadata": {}})
        writer.close({"reward": 1.0})
    for index in range(1, count):
        shutil.copytree(run.episodes_dir / "00000", run.episodes_dir / f"{index:05d}")
    return run


def settings_of(count: int) -> plans.PlaySettings:
    return plans.PlaySettings(
        environment=None, options={}, model="none", episodes=count, conditions={"": ()},
        capture={"sites": [], "positions": "all"}, generation={}, threads=1,
    )  # fmt: skip


def finish(run: store.Run, settings: plans.PlaySettings) -> None:
    """What `sonde.play` does when all episodes have ended."""
    document = run.folder / "manifest.json"
    documents.write(document, {**documents.read(document, "manifest"), "status": "running"})
    again = store.Run.open(run.folder)
    rows = [plays._row(again.episode(plan.id)) for plan in settings.plans()]
    assert len(rows) == settings.episodes
    documents.keep(run.folder / "stages" / "play.json", {"episodes": rows})
    again.finish({"episodes": len(rows)})
    assert store.Run.open(run.folder).status == "finished"


def take_up(run: store.Run, settings: plans.PlaySettings) -> None:
    """What `sonde play` does first with a run that is there: which waves are still to be played?"""
    assert all(plays._finished(run, wave) for wave in settings.waves())


def listed(run: store.Run) -> None:
    store.Index(run.folder.parent).runs()


def listed_anew(run: store.Run) -> None:
    (run.folder.parent / "index.sqlite").unlink(missing_ok=True)
    listed(run)


def shown(run: store.Run) -> None:
    from sonde._cli import runs

    with contextlib.redirect_stdout(io.StringIO()):
        runs.show(run.id, run.folder.parent, as_json=True)


def added(run: store.Run) -> None:
    """Starts 50 episodes more, and takes them away again: as many for each size."""
    held = store.Run.open(run.folder)
    for _ in range(50):
        writer = held.new_episode()
        writer.abort()
        shutil.rmtree(writer.folder)


def actions(run: store.Run, count: int, out: pathlib.Path) -> dict[str, Callable[[], object]]:
    settings = settings_of(count)
    return {
        "finishing": lambda: finish(run, settings),
        "taking up": lambda: take_up(run, settings),
        "waves of a cluster": lambda: [settings.wave_at(number) for number in range(count // settings.wave)],
        "50 new episodes": lambda: added(run),
        "runs ls, index gone": lambda: listed_anew(run),
        "runs ls": lambda: listed(run),
        "runs show": lambda: shown(run),
        "runs verify": lambda: store.verify_run(run.folder),
        "runs export, JSON": lambda: store.export_json(run, out / "x.json"),
        "runs export, Parquet": lambda: store.export_parquet(run, out / "x"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help="The name of one action.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        runs = {count: written(place / f"runs-{count}", count) for count in asked.sizes}
        jobs = {count: actions(run, count, place) for count, run in runs.items()}
        first, last = asked.sizes[0], asked.sizes[-1]
        shared.report(
            f"seconds, shortest of {asked.repeats}; in brackets of the processor; and how much more than {first}"
        )
        worst = busy_worst = 0.0
        for name in [asked.only] if asked.only else jobs[first]:
            clock: dict[int, list[float]] = {count: [] for count in jobs}
            work: dict[int, list[float]] = {count: [] for count in jobs}
            for turn in range(asked.repeats + 1):
                for count, held in jobs.items():
                    start, busy = time.perf_counter(), time.process_time()
                    held[name]()
                    if turn:  # the first turn warms the file system's cache
                        clock[count].append(time.perf_counter() - start)
                        work[count].append(time.process_time() - busy)
            middle = {count: min(times) for count, times in clock.items()}
            busy_middle = {count: min(times) for count, times in work.items()}
            told = ", ".join(
                f"{count:,}: {middle[count]:.3f} ({busy_middle[count]:.3f}) {middle[count] / middle[first]:.1f}x "
                f"({busy_middle[count] / busy_middle[first]:.1f}x)"
                for count in jobs
            )
            shared.report(f"{name:>22}: {told}")
            if name == "finishing":
                worst = middle[asked.sizes[1]] / middle[first]
                busy_worst = busy_middle[asked.sizes[1]] / busy_middle[first]
        if worst:
            told = f"finishing {asked.sizes[1]} episodes against {first}"
            shared.verdict(told, worst, f"at most {BAR}", worst <= BAR)
            shared.verdict("the same in processor time", busy_worst, f"at most {BAR}", busy_worst <= BAR)
        shared.report(
            f"{last} episodes would be {last / first:.0f}x if linear, {(last / first) ** 2:.0f}x if quadratic"
        )


if __name__ == "__main__":
    main()
