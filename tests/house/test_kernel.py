"""What runs is built once: one base of settings, one progress, one durable writer."""

import ast
import pathlib

import sonde

ROOT = pathlib.Path(sonde.__file__).parent
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
         for path in ROOT.rglob("*.py") if "repositories" not in path.parts}  # fmt: skip


def classes():
    return [(path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def aliases(name):
    """Where a name is bound to a type of callbacks."""
    return [path for path, tree in TREES.items() for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name]  # fmt: skip


def test_no_class_is_named_found_or_kept():
    assert [path for path, node in classes() if node.name in ("Found", "Kept")] == []


def test_progress_and_its_callbacks_are_defined_once():
    assert [path for path, node in classes() if node.name == "Progress"] == ["core/progress.py"]
    assert aliases("OnProgress") == aliases("Tell") == ["core/progress.py"]


def test_settings_of_experiments_have_one_base():
    """Bare `Settings` are those of a part of one: a sweep's plan, a probe's folds."""
    parts = {"analysis/examples.py", "analysis/tracing/knockout.py", "analysis/tracing/planning.py"}
    assert {path for path, node in classes() if node.name == "Settings"} == {"core/settings.py", *parts}


def test_only_the_store_appends_to_files():
    """Trainings that share a folder lock one, and append nothing."""
    opens = [path for path, tree in TREES.items() for node in ast.walk(tree)
             if isinstance(node, ast.Attribute) and node.attr == "AppendFile" and not path.startswith("store/")]  # fmt: skip
    assert opens == ["bench/training.py"]
