"""SWE-bench's own grading, as a process of its own: one JSON request a line in, one JSON answer a line out.

    python -I grader.py

Run by `harness`, never imported: it imports the package `swebench`, which loads much and reads settings of the user.
Nothing of Sonde is imported here, and nothing is decided here: both functions that answer are SWE-bench's.
"""

import importlib
import json
import os
import sys
from typing import Any


def answer(asked: dict[str, Any], grading: Any, utils: Any) -> dict[str, Any]:
    """The answer to a request: `script`, `report` or `statuses` of a row."""
    spec = utils.make_test_spec(asked["row"])
    if asked["do"] == "script":
        if spec.log_parser not in grading.PARSER_REGISTRY:
            raise ValueError(f"swebench has no log parser {spec.log_parser!r}: its version is too old for this row")
        return {"script": spec.eval_script}
    if asked["do"] == "statuses":
        statuses, found = grading.get_logs_eval(spec, asked["log"])
        return {"statuses": statuses, "found": found}
    name = spec.instance_id
    prediction = {"instance_id": name, "model_patch": asked["patch"], "model_name_or_path": "sonde"}
    return {"report": grading.get_eval_report(spec, prediction, asked["log"], True)[name]}


def main() -> None:
    """Answers until there are no more requests."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    grading, utils = (importlib.import_module(f"swebench.harness.{name}") for name in ("grading", "utils"))
    for line in sys.stdin:
        try:
            told = answer(json.loads(line), grading, utils)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(told) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
