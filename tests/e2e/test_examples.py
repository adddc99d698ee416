"""Every example runs as it stands, says something, and draws what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCS = Path(__file__).parents[2] / "docs"
PICTURES = {
    "record_episode": (),
    "attention_over_steps": ("heads_by_step.png", "pattern.png"),
    "critical_steps": ("critical_steps.png",),
    "patch_success_into_failure": ("patch.png",),
    "temporal_flow": ("steps.png", "drift.png"),
    "compare_models": ("norms.png",),
    "steer_one_step": ("steering.png",),
    "mini_swe_agent": (),
}


def run(name, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=280,
    )


def test_every_example_is_known_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PICTURES)


QUICK = ("record_episode",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PICTURES]
)
def test_an_example_runs_on_a_tiny_model(name, tmp_path):
    models = ["tiny-gpt2", "tiny-llama"] if name == "compare_models" else ["tiny-gpt2"]
    done = run(name, "--model", *models, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
    assert str(tmp_path) in done.stdout
    for picture in PICTURES[name]:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


PAGES = [
    "recording.md",
    "interventions.md",
    "engine.md",
    "agents.md",
    "twenty-questions.md",
    "code.md",
    "coming-from.md",
]


def blocks_of(page):
    text = (DOCS / page).read_text()
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    from sonde.agents import presets
    from sonde.models import families

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(families, "FAMILIES", families.FAMILIES)  # a page may add a family
    monkeypatch.setattr(presets, "_presets", dict(presets._presets))  # or a preset
    names = {"__name__": "page"}
    for number, block in enumerate(blocks_of(page)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    if "model" in names:
        names["model"].close()
