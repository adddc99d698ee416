"""Did the repair succeed? Asked of the sandbox without ever showing it the answers.

A hidden test is an ordinary `unittest` file in which every check is `self.assertEqual(expression, literal)` or
`with self.assertRaises(SomeBuiltinError):`. To judge:

1. The expected literals are taken out of the text and kept here.
2. What remains runs in the sandbox, from a folder of its own with a random name, and reports the value of each
   expression (see `probe`).
3. The values are compared here. Passed means: each place reported exactly once, each with the right value.

So there is no verdict in the sandbox to be forged. Code that prints "OK", leaves with status 0, replaces `unittest`,
or returns objects equal to everything reports no values, or wrong ones. Costs one start of Python, about 0.2 s.
"""

import ast
import builtins
import dataclasses
import inspect
import json
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from sonde.agents.code import probe, tasks
from sonde.agents.sandbox import base
from sonde.core import errors

_FORM = "expected self.assertEqual(expression, literal) or `with self.assertRaises(BuiltinError):`, once each"
_REPORT = 4 * 2**20
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MANY_TIMES = (*_LOOPS, ast.If, ast.IfExp, ast.Match, ast.Lambda)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came of judging.

    Attributes:
        passed: Whether every check is right.
        right: How many are.
        checks: How many there are.
        loaded: Whether the hidden tests could be imported.
        reason: What went wrong first, for whoever reads the record; not for the agent.
    """

    passed: bool
    right: int
    checks: int
    loaded: bool
    reason: str


async def judge(sandbox: base.Sandbox, task: tasks.CodeTask, *, limits: base.Limits | None = None) -> Verdict:
    """Judges the repository in a sandbox's working folder.

    Args:
        sandbox: Where the agent worked.
        task: What it worked on.
        limits: For the tests.

    Raises:
        ValueError: The task's hidden tests are not of the form that can be judged.
        SandboxError: The sandbox does not work.
    """
    marker = secrets.token_hex(16)
    questions, answers = withhold(task)
    folder = f".judge-{marker}"
    files = {f"{folder}/{number}.py": text for number, text in enumerate(questions)}
    try:
        await sandbox.put({f"{folder}/probe.py": inspect.getsource(probe), **files})
    except errors.SandboxError as error:  # such as a working folder that the agent has filled
        return Verdict(False, 0, len(answers), True, f"the working folder cannot be judged: {error}")
    allowed = dataclasses.replace(limits or base.Limits(), output=_REPORT)
    result = await sandbox.run(f"python3 -I -S -B {folder}/probe.py {marker} . {' '.join(files)}", limits=allowed)
    return _verdict(_reports(result.output, marker), answers, result)


def withhold(task: tasks.CodeTask) -> tuple[list[str], list[Any]]:
    """The hidden tests without their answers, and the answers.

    Raises:
        ValueError: Names the task, the file and the line that is not of the form.
    """
    questions, answers = [], []
    for path, text in task.hidden.items():
        where = f"task {task.id!r}: hidden/{path}"
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{where} is not Python: {error}") from None
        questions.append(ast.unparse(ast.fix_missing_locations(_Withholding(where, answers).visit(tree))))
    if not answers:
        raise ValueError(f"task {task.id!r}: the hidden tests check nothing; {_FORM}")
    return questions, answers


class _Withholding(ast.NodeTransformer):
    """Replaces each check by a report of what is checked."""

    def __init__(self, where: str, answers: list[Any]) -> None:
        self.where, self.answers, self.loops = where, answers, 0

    def visit(self, node: ast.AST) -> Any:
        inside = isinstance(node, _MANY_TIMES)
        self.loops += inside
        result = super().visit(node)
        self.loops -= inside
        return result

    def visit_With(self, node: ast.With) -> ast.AST:
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and _check(call) == "assertRaises":
                name = call.args[0].id if len(call.args) == 1 and isinstance(call.args[0], ast.Name) else ""
                kind = getattr(builtins, name, None)
                if not (isinstance(kind, type) and issubclass(kind, Exception)) or call.keywords or item.optional_vars:
                    self._refuse(call)
                item.context_expr = self._report("sonde_raising", call, {"raised": name})
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _check(node):
            return self.generic_visit(node)
        if _check(node) != "assertEqual" or len(node.args) != 2 or node.keywords:
            self._refuse(node)
        try:
            answer = probe.plain(ast.literal_eval(node.args[1]))
        except (ValueError, TypeError):
            self._refuse(node)
        return self._report("sonde_record", node, answer, self.visit(node.args[0]))

    def _report(self, name: str, node: ast.Call, answer: Any, *values: ast.expr) -> ast.Call:
        if self.loops:
            self._refuse(node)
        self.answers.append(answer)
        number = ast.Constant(len(self.answers) - 1)
        itself = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
        return ast.copy_location(ast.Call(itself, [number, *values], []), node)

    def _refuse(self, node: ast.Call) -> NoReturn:
        raise ValueError(f"{self.where}, line {node.lineno}: cannot judge {ast.unparse(node)[:80]!r}; {_FORM}")


def _check(call: ast.Call) -> str:
    """The name of the assertion that a call is, or an empty text."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
        return function.attr if function.attr.startswith(("assert", "fail")) else ""
    return ""


def _reports(output: str, marker: str) -> list[tuple[Any, Any]]:
    """What the probe said; lines that are not its own, or not whole, do not count."""
    found = []
    for line in output.split("\n"):
        if line.startswith(marker):
            try:
                place, value = json.loads(line[len(marker) :])
            except (TypeError, ValueError, RecursionError):
                continue
            found.append((place, value))
    return found


def _verdict(reports: list[tuple[Any, Any]], answers: list[Any], result: base.Result) -> Verdict:
    given: dict[int, list[Any]] = {number: [] for number in range(len(answers))}
    for place, value in reports:
        if isinstance(place, int) and place in given:
            given[place].append(value)
    right = sum(len(given[number]) == 1 and _right(given[number][0], answer) for number, answer in enumerate(answers))
    said = {place: value for place, value in reversed(reports) if isinstance(place, str)}
    passed = right == len(answers)
    reason = "" if passed else str(said.get("unloaded") or said.get("error") or result.note or "a value is wrong")
    return Verdict(passed, right, len(answers), "unloaded" not in said, reason)


def _right(given: Any, answer: Any) -> bool:
    if isinstance(answer, Mapping) and "raised" in answer:
        return isinstance(given, dict) and answer["raised"] in given.get("raised", ())
    return bool(given == answer)
