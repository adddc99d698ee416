"""A run's patches in the form that SWE-bench's own command line reads.

    sonde runs export RUN --to swebench --out predictions.jsonl
    swebench eval verified -p predictions.jsonl --run-id mine

One prediction per instance: its first episode that came to its end. Costs one read of the run's steps.
"""

import json
from pathlib import Path
from typing import Any

from sonde import store
from sonde.core import errors


def written(run: store.Run, out: Path | str) -> Path:
    """Writes the predictions of a run.

    Args:
        run: Of `sonde play swebench`.
        out: A file `.jsonl` (one prediction a line) or `.json` (a list); one that is there is replaced.

    Returns:
        The file.

    Raises:
        RequestError: The file has another ending, or the run holds no patches.
    """
    path = Path(out)
    if path.suffix not in (".json", ".jsonl"):
        raise errors.RequestError(f"SWE-bench reads predictions from .json or .jsonl files, got {path.name!r}")
    model = run.manifest["settings"].get("model") or "sonde"
    found: dict[str, dict[str, Any]] = {}
    for episode in run.episodes():
        patch = _patch(episode)
        name = str(episode.metadata.get("task_id"))
        if patch is not None and name not in found:
            found[name] = {"instance_id": name, "model_name_or_path": model, "model_patch": patch}
    if not found:
        raise errors.RequestError(f"run {run.id} holds no patches: play `sonde play swebench` and let episodes end")
    rows = [json.dumps(row, ensure_ascii=False) for row in found.values()]
    text = "".join(f"{row}\n" for row in rows) if path.suffix == ".jsonl" else f"[{', '.join(rows)}]\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _patch(episode: Any) -> str | None:
    """The patch in the verdict of an episode, if it has one."""
    for step in reversed(episode.steps):
        info = (step.get("metadata") or {}).get("info") or {}
        verdict = info.get("verdict") or {}
        if "official" in verdict:
            return verdict["patch"]
    return None
