"""Every command that computes something gives the numbers, claims and order it gave when they were written down.

    python tests/parity/test_results.py tests/data/results [NAME ...]    # writes them down anew

Left out is what may differ: times, paths, names of runs, versions. On the processor they were written on, numbers are equal
to the last digit; elsewhere floats may differ in their last bits, so they are compared to five digits, and all else exactly.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
import torch

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "results"
FAST = ("layers", "circuits-find", "lab-measure")


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
DROPPED = {"timing", "seconds", "versions", "folder", "run", "command", "created", "finished", "crc32", "took", "time"}
#: By name: the words after `sonde`, and the files that hold what was found.
PRODUCERS = {
    "layers": (
        "study layers -m tiny-llama --texts 2 --tokens 16 --windows 2 --orders 2 --run it",
        "runs/it/results.json",
    ),
    "compare": ("study compare 20q -m tiny-gpt2 -m tiny-llama -n 2 --max-steps 2 --run it", "runs/it/results.json"),
    "critical-steps": (
        "study critical-steps 20q -m tiny-llama -n 3 --layers 0,2 --rollouts 2 --heads 1 --max-steps 3 "
        "--max-new-tokens 6 --run it",
        "runs/it/results.json",
    ),
    "20q": (
        "study 20q -m talker --episodes 10 --steps 3 --layers 5 --steer-episodes 3 --seed 3 --run it",
        "runs/it/results.json",
    ),
    "binding": ("study binding -m seed-0 --pairs 10 --run it", "runs/it/results.json"),
    "circuits-find": (
        "circuits find -m tiny-llama --task induction --pairs 12 --method eap --edges 20 --run it",
        "runs/it/results.json",
    ),
    "circuits-compare": (
        "circuits compare -m tiny-llama --task induction --pairs 12 --methods eap-ig,exact-node,random --run it",
        "runs/it/results.json",
    ),
    "programs-run": (
        "programs run binding -m tiny-gpt2 -n 3 --seq-lens 2,3 --max-new-tokens 3 --out out --run it",
        "out/**/*.json",
    ),
    "programs-seeds": ("programs seeds -m tiny-llama --max-seeds 2 --run it", "runs/it/results.json"),
    "trace": (
        "trace -m talker-llama --lines 3 --hops 1 -n 8 --template minimal --component residual_stream "
        "--roles rhs_1,final --run it",
        "runs/it/results.json",
    ),
    "play": ("play 20q -m tiny-llama -n 3 --max-steps 2 --max-new-tokens 6 --run it", "runs/it/episodes/*/steps.jsonl"),
    "trace-episode": ("trace episode it 0 --layers 2 --run traced", "runs/traced/results.json"),
    "bench-train": (
        "bench train iit -i 3 --epochs 1 --batch-size 32 --lr 0.005 --pool 4 --threshold 0.2 --early-stop --run it",
        "runs/it/seed-*/log.json",
    ),
    "bench-run": ("bench run eap -i 3 --tracr --pairs 20 --run it", "runs/it/eap/**/*.json"),
    "bench-eval": ("bench eval iit -i 3 --interp-bench --rows 200 --pairs 20 --run it", "runs/it/iit/**/*.json"),
    "leaderboard": (
        "bench leaderboard --tracr --cases 3,11 --methods eap-ig,exact-node,random --pairs 20 --run it",
        "runs/it/results.json",
    ),
    "lab-measure": ("lab measure skip:1 -m tiny-llama -t capitals -n 4 --controls 1 --run it", "runs/it/results.json"),
    "lab-translate": ("lab translate -m tiny-llama --tokens 16 --run it", "runs/it/results.json"),
    "lab-depth": ("lab depth -m tiny-llama --words 4 --run it", "runs/it/results.json"),
    "lab-run": (
        "lab run --task habit --tasks tasks.json -m tiny-llama --budget 12 --examples 6 --run it",
        "runs/it/results.json",
    ),
}
#: What must have been run before, in the same folder.
AFTER = {"trace-episode": "play"}


def run(name: str) -> dict:
    """Runs a command in a folder of its own, and returns what it wrote."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"sonde-{name}-"))
    try:
        for before in (AFTER.get(name), name):
            if before:
                words, pattern = PRODUCERS[before]
                output = _typed(folder, words.split())
        found = {str(path.relative_to(folder)): _content(path) for path in sorted(folder.glob(pattern or "-"))}
        if not found and pattern is not None:
            raise AssertionError(f"sonde {words} wrote no {pattern}; it said:\n{output}")
        return found or {"output": output}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _typed(folder: pathlib.Path, words: list[str]) -> str:
    _prepare(folder, words)
    done = subprocess.run(
        [sys.executable, "-m", "sonde", *words],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"sonde {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _content(path: pathlib.Path):
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    return _plain(lines)


def _plain(value):
    """Without what may differ."""
    if isinstance(value, dict):
        return {
            key: _plain(inner) for key, inner in value.items() if key not in DROPPED and not key.endswith("_seconds")
        }
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _prepare(folder: pathlib.Path, words: list[str]) -> None:
    """Makes the models and tasks that a command names and Sonde does not have."""
    if "talker" in words:
        _talker(folder / "talker")
    if "talker-llama" in words:
        _learned(folder / "talker-llama")
    if "tasks.json" in words:
        _tasks(folder / "tasks.json")


def _talker(folder: pathlib.Path) -> None:
    """A model that asks one valid question, or says one invalid thing, by chance."""
    from sonde.testing import planted

    with planted.model(null=True) as made:
        made.hf.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    vocab = told["model"]["vocab"]
    vocab["Is it alive?"], vocab["Nonsense."] = vocab.pop(planted.VALID), vocab.pop(planted.INVALID)
    (folder / "tokenizer.json").write_text(json.dumps(told))


def _learned(folder: pathlib.Path) -> None:
    """A model that knows the programs of the trace by heart."""
    import sonde
    from sonde.programs import CausalTracer, causal_asking

    with sonde.load("tiny-llama") as model:
        asked = CausalTracer(model, only_right=False).prepare(causal_asking.drawn(3, 1, 8, seed=0))
        _teach(model, (*asked.tasks, *asked.controls))
        model.hf.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)


def _teach(model, tasks) -> None:
    """Fits the unembedding so that the model gives the expected answer to every prompt."""
    asked = dict(zip([row for one in tasks for row in (one.clean, one.counterfactual)],
                     [token for one in tasks for token in one.expected], strict=True))  # fmt: skip
    with torch.no_grad():
        ends = model.hf.model(input_ids=torch.tensor(list(asked)), use_cache=False).last_hidden_state[:, -1].double()
        wanted = 10 * torch.nn.functional.one_hot(torch.tensor(list(asked.values())), model.cfg.d_vocab).double()
        model.hf.lm_head.weight.copy_((torch.linalg.pinv(ends) @ wanted).T)


def _tasks(path: pathlib.Path) -> None:
    """A task whose answers are what the model says anyway."""
    import sonde

    prompts = [f"The {word} is" for word in ("sky", "sea", "sun", "moon", "dog", "cat", "tree", "car", "road", "house",
                                             "king", "queen", "bird", "fish", "snow", "rain")]  # fmt: skip
    with sonde.load("tiny-llama") as model:
        said = [one.text[:2] for one in model.generate(prompts, max_new_tokens=4)]
    pairs = [(prompt, text) for prompt, text in zip(prompts, said, strict=True) if text.strip() and text[-1:].strip()]
    examples = [{"prompt": prompt, "answers": [text]} for prompt, text in pairs]
    task = {"name": "habit", "description": "What it says anyway.", "questions": [], "examples": examples}
    path.write_text(json.dumps({"format": 1, "tasks": [task]}), encoding="utf-8")


def differences(found, known, place=""):
    """Where two contents differ."""
    if isinstance(found, dict) and isinstance(known, dict):
        if list(found) != list(known):
            return [f"{place}: keys {list(found)} instead of {list(known)}"]
        return [one for key in known for one in differences(found[key], known[key], f"{place}/{key}")]
    if isinstance(found, list) and isinstance(known, list) and len(found) == len(known):
        return [
            one for at, pair in enumerate(zip(found, known, strict=True)) for one in differences(*pair, f"{place}/{at}")
        ]
    if type(found) is type(known) is float and math.isclose(found, known, rel_tol=1e-5, abs_tol=1e-6):
        return []
    return [] if found == known else [f"{place}: {found!r} instead of {known!r}"[:300]]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in PRODUCERS]
)
def test_a_command_finds_what_it_found_before(name):
    known = json.loads((FOLDER / f"{name}.json").read_text())
    assert differences(list(run(name).values()), list(known.values())) == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or PRODUCERS:
        try:
            (target / f"{name}.json").write_text(json.dumps(run(name), indent=1) + "\n")
            print(name, "ok", flush=True)
        except AssertionError as error:
            print(name, "FAILED", str(error)[:1500], flush=True)
