"""Who answers prompts? A language model through Sonde's engine, or anything with the same two methods.

The runner opens models by name with `open_model`. Give it another opener to put something else in their place: a model
behind a server, or one whose ability is known, to test an experiment with. Costs what generating costs.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, runtime_checkable

if TYPE_CHECKING:
    from sonde.models import requests


class Sampling(TypedDict):
    """How an answer is sampled; temperature 0 takes the most probable tokens."""

    max_new_tokens: int
    temperature: float
    seed: int


@runtime_checkable
class Answerer(Protocol):
    """What an experiment asks."""

    def ask(self, prompts: Sequence[str], sampling: Sampling) -> list[str]:
        """Returns a continuation of each prompt; the prompts may run as one batch."""
        ...

    def close(self) -> None:
        """Frees what was opened."""
        ...


Opener = Callable[[str], Answerer]


def open_model(name: str, **how: Any) -> Answerer:
    """Loads a zoo name, a folder, a GGUF file or a Hugging Face id; `device` and `dtype` as for `sonde.load`."""
    from sonde.models import loading

    return ModelAnswerer(loading.load(name, **how))


class Answerers:
    """What is open, by name; opened when it is first needed."""

    def __init__(self, opener: Opener = open_model) -> None:
        """Opens nothing yet."""
        self._opener, self._open = opener, dict[str, Answerer]()

    def __call__(self, name: str) -> Answerer:
        """The one of a name."""
        if name not in self._open:
            self._open[name] = self._opener(name)
        return self._open[name]

    def held(self, name: str) -> dict[str, Any] | None:
        """Which model it is, exactly; None for what is no model of Sonde's."""
        answerer = self(name)
        return answerer.held if isinstance(answerer, ModelAnswerer) else None

    def check(self, name: str, known: dict[str, Any] | None, *, what: str) -> None:
        """Refuses another model than the one that is known.

        Raises:
            RequestError: It is another; says what differs.
        """
        from sonde.models import identity

        now = self.held(name)
        if known is not None and now is not None:
            identity.check(known, now, what=what)

    def names(self) -> list[str]:
        """The names of all that is open."""
        return list(self._open)

    def close(self, *names: str) -> None:
        """Frees those of these names, as far as they are open; all if none is named."""
        for name in names or self.names():
            if name in self._open:
                self._open.pop(name).close()


class ModelAnswerer:
    """A loaded model; closing it frees the weights."""

    def __init__(self, model: Any) -> None:
        """Takes a `sonde.Model`."""
        from sonde.models import identity

        self.model, self.held = model, identity.of(model)

    def ask(self, prompts: Sequence[str], sampling: Sampling) -> list[str]:
        """Generates for all prompts as one batch, and from nothing: earlier batches leave no trace in the last bits.

        Each prompt draws from a seed of its own, which does not depend on what stands beside it.
        """
        self.model.pool.entries.clear()
        batch = [self._request(prompt, sampling) for prompt in prompts]
        with self.model.packed():
            answers = self.model.wait(self.model.submit(batch), batch)
        return [answer.text for answer in answers]

    def _request(self, prompt: str, sampling: Sampling) -> "requests.Request":
        from sonde.models import requests

        seed = zlib.crc32(prompt.encode(), sampling["seed"])
        own = requests.Sampling(**{**sampling, "seed": seed})
        return self.model.request(tuple(self.model.tokenizer.encode(prompt)), own)

    def close(self) -> None:
        """Frees weights and caches."""
        self.model.close()
