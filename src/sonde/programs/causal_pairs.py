"""Which tokens go into a causal trace of a program? Clean and counterfactual prompts, their answers, and what tokens are.

    maker = PairMaker(model.tokenizer, template=prompts.MINIMAL, seed=0)
    task = maker.root(0, program)         # the query's constant changed
    control = maker.control(task)         # a constant off the query's chain changed

1. Make the counterfactual of the program (`counterfactuals`), with as many tokens and a constant that is new to it.
2. Write the answer behind the prompt and encode both together. The first token that reaches into the answer is the
   answer's token, and what stands before it is the prompt: so ` 4` as one token, `4` after a space, and the first of
   several digits all come out as the model would write them.
3. Find the roles by characters (`tokens`), and check that they stand inside that prompt.

The answer is judged by its first token, so the new constant is drawn until it begins as no constant of the program does.
Where none is left, and where the two answers of a given pair begin alike, the program is dropped, with its reason. Costs
a few encodings a program.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sonde.core import errors
from sonde.programs import chains, counterfactuals, interpreter, prompts, tokens

CHANGED = "changed_constant"
TAKEN = "every constant of as many digits stands in the program already"
ALIKE = "every other constant begins as one of the program does"
NO_OTHER = "no other constant gives as many tokens"


class Unusable(Exception):  # noqa: N818  # no failure: the reason why one program is left out
    """Why a program cannot be traced."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """A program that is left out, and why; a control that is left out leaves its program in."""

    index: int
    kind: counterfactuals.Kind
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A pair that can be traced.

    Attributes:
        index: Which of the programs it was made of.
        pair: Both programs and their answers.
        clean: Tokens of the clean prompt.
        counterfactual: Tokens of the other; as many.
        answer: The token that the clean prompt should be continued with.
        counterfactual_answer: That of the other prompt; of a control, whose answer stays, the changed constant's token.
        roles: Token positions by role.
        labels: The text of each token.
    """

    index: int
    pair: counterfactuals.Pair
    clean: tuple[int, ...]
    counterfactual: tuple[int, ...]
    answer: int
    counterfactual_answer: int
    roles: Mapping[str, tuple[int, ...]]
    labels: tuple[str, ...]

    @property
    def kind(self) -> counterfactuals.Kind:
        """Whose constant differs: `root`, or `distractor` for a control."""
        return self.pair.kind

    @property
    def expected(self) -> tuple[int, int]:
        """The tokens that a model which can do the task gives for the two prompts."""
        return self.answer, self.counterfactual_answer if self.kind == "root" else self.answer

    @property
    def answer_repeats(self) -> bool:
        """Whether a constant off the query's chain is the clean answer too."""
        chain = chains.VariableChain.of(self.pair.clean)
        return self.pair.clean_answer in {int(one.right) for one in chain.distractors if one.is_constant}

    @property
    def counterfactual_repeats(self) -> bool:
        """Whether the other answer stands in the clean program: never in pairs made here, perhaps in given ones."""
        return self.pair.counterfactual_answer in chains.VariableChain.of(self.pair.clean).constants

    def trace_pair(self) -> Any:
        """The pair as `analysis.tracing` takes it."""
        from sonde.analysis.tracing import pairs

        name = f"{self.index}/{self.kind}"
        return pairs.TracePair(self.clean, self.counterfactual, self.answer, self.counterfactual_answer, name)


class PairMaker:
    """Turns programs into tasks."""

    def __init__(self, tokenizer: Any, *, template: str = prompts.MINIMAL, seed: int = 0) -> None:
        """Takes the model's tokenizer, the prompt, and the seed that fixes which constant becomes which."""
        prompts.check(template)
        self.analyzer, self.template = tokens.TokenAnalyzer(tokenizer), template
        self._generator = counterfactuals.CounterfactualGenerator(seed=seed, tokenizer=tokenizer, template=template)

    def root(self, index: int, given: str | counterfactuals.Pair) -> Task:
        """Makes the pair in which the query's constant differs; one that is given is taken as it is.

        Raises:
            RequestError: It is no binding program, or a given pair has different lengths or equal answers.
            Unusable: The program cannot be traced.
        """
        if isinstance(given, counterfactuals.Pair):
            return self._given(index, given)
        self._roles(given)  # a program or tokenizer that is no good is an error before anything is drawn
        begins, rejected = self._begins(given), False

        def is_new(pair: counterfactuals.Pair) -> bool:
            nonlocal rejected
            new = self._prompt(pair.counterfactual, pair.counterfactual_answer)[1] not in begins
            rejected = rejected or not new
            return new

        try:
            pair = self._generator.root(given, accepts=is_new)
        except errors.RequestError as error:
            chain = chains.VariableChain.of(given)
            free = counterfactuals.fresh(chain, chain.root.right, np.random.default_rng(0))
            raise Unusable(ALIKE if rejected else NO_OTHER if free else TAKEN) from error
        return self._root_task(index, pair)

    def control(self, task: Task) -> Task:
        """Makes the pair in which a constant off the chain differs, and the answer does not.

        Raises:
            Unusable: There is no such constant.
        """
        begins = self._begins(task.pair.clean)

        def is_new(pair: counterfactuals.Pair) -> bool:
            made = self._control_task(task, pair)
            return made is not None and made.counterfactual_answer not in begins

        try:
            made = self._control_task(task, self._generator.distractor(task.pair.clean, accepts=is_new))
        except errors.RequestError as error:
            raise Unusable("no constant off the chain can be changed") from error
        assert made is not None
        return made

    def _given(self, index: int, pair: counterfactuals.Pair) -> Task:
        answers = [int(interpreter.answer(one)) for one in (pair.clean, pair.counterfactual)]
        if answers[0] == answers[1]:
            raise errors.RequestError(
                f"clean and counterfactual both give {answers[0]}, so no patch could change the answer; "
                "change the constant that the query's chain ends in (controls are made by the tracer)"
            )
        lengths = [len(self._prompt(one, said)[0]) for one, said in zip(_texts(pair), answers, strict=True)]
        if lengths[0] != lengths[1]:
            raise errors.RequestError(
                f"the clean prompt has {lengths[0]} tokens and the counterfactual {lengths[1]}; positions "
                "of a pair must correspond, so give programs of as many tokens (CounterfactualGenerator with a tokenizer)"
            )
        line = pair.line or 0
        whole = counterfactuals.Pair("root", pair.clean, pair.counterfactual, answers[0], answers[1], line)
        return self._root_task(index, whole)

    def _root_task(self, index: int, pair: counterfactuals.Pair) -> Task:
        clean, answer = self._prompt(pair.clean, pair.clean_answer)
        other, other_answer = self._prompt(pair.counterfactual, pair.counterfactual_answer)
        if answer == other_answer:
            raise Unusable(f"its answers share their first token, {self._text(answer)!r}")
        if len(clean) != len(other):
            raise Unusable("prompt and answer share tokens, differently in clean and counterfactual")
        roles, labels = self._inside(pair.clean, clean)
        return Task(index, pair, clean, other, answer, other_answer, roles, labels)

    def _control_task(self, task: Task, pair: counterfactuals.Pair) -> Task | None:
        """The control, or None if its tokens do not correspond."""
        other, _ = self._prompt(pair.counterfactual, pair.clean_answer)
        changed = next(one for one in chains.VariableChain.of(pair.counterfactual).distractors if one.line == pair.line)
        same, token = self._prompt(pair.clean, int(changed.right))
        if same != task.clean or len(other) != len(task.clean):
            return None
        found, start = self._roles(pair.clean), self.template.index(prompts.PLACE)
        place = (start + changed.start, start + changed.end)
        at = tuple(p for p, (a, b) in enumerate(found.offsets) if a < place[1] and place[0] < b)
        roles = {**task.roles, CHANGED: at}
        return Task(task.index, pair, task.clean, other, task.answer, token, roles, task.labels)

    def _begins(self, program: str) -> frozenset[int]:
        """The first tokens of all constants of the program, as answers."""
        return frozenset(self._prompt(program, value)[1] for value in chains.VariableChain.of(program).constants)

    def _prompt(self, program: str, answer: int) -> tuple[tuple[int, ...], int]:
        """The tokens before the answer, and the answer's first token."""
        text = prompts.filled(self.template, program)
        ids, offsets = self.analyzer.encode(f"{text}{answer}")
        at = next((position for position, (_, end) in enumerate(offsets) if end > len(text)), 0)
        if at == 0:
            raise Unusable("no token stands for the answer alone")
        return ids[:at], ids[at]

    def _inside(self, program: str, prompt: tuple[int, ...]) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
        """Roles inside the prompt, its last token being `final`, and the texts of its tokens."""
        found = self._roles(program)
        roles = {role: at for role, at in found.roles.items() if role != tokens.FINAL}
        for role, positions in roles.items():
            if any(p >= len(prompt) or found.ids[p] != prompt[p] for p in positions):
                raise Unusable(f"its tokenizer joins {role} with the answer")
        return {**roles, tokens.FINAL: (len(prompt) - 1,)}, tuple(self._text(one) for one in prompt)

    def _roles(self, program: str) -> tokens.TokenRoles:
        return self.analyzer.analyze(program, template=self.template)

    def _text(self, token: int) -> str:
        return self.analyzer.tokenizer.decode([token])


def _texts(pair: counterfactuals.Pair) -> tuple[str, str]:
    return pair.clean, pair.counterfactual
