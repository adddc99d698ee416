"""Which direction at a Site tells the good rows from the bad ones, and what does it have to beat?

    direction = contrastive(features, valid, site="blocks.8.hook_resid_post")
    spec = direction.steer(2.0, positions=[-1])
    controls = random_directions(direction, 5, rng)

A direction is a difference of means, as published: mean(rows labelled True) - mean(rows labelled False), not normalised,
so strength 1 adds the whole difference. Rows count alike: an episode with more rows weighs more. Random and orthogonal
controls have the norm of what they control, for a longer vector does more whatever it means. One pass over the features each.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from sonde.core import arrays, errors, interventions, sites

#: Permutations to try for one that changes a label.
ATTEMPTS = 64


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Direction:
    """A vector at a Site.

    Attributes:
        site: Where.
        vector: A private, read-only copy, in single precision.
        positive: Rows labelled True that it was made from; 0 for a control that was drawn.
        negative: Rows labelled False.
        steps: Steps of the episode it is meant for; None: all.
    """

    site: str
    vector: Float[np.ndarray, "d_model"]
    positive: int = 0
    negative: int = 0
    steps: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Checks the Site and the numbers, and keeps a copy."""
        sites.Site.parse(self.site)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
            vector = np.asarray(self.vector, dtype=np.float32)
        if not np.isfinite(vector).all():
            raise errors.InterventionError(f"a direction at {self.site} with numbers that are not finite")
        object.__setattr__(self, "vector", arrays.frozen(vector))

    @property
    def norm(self) -> float:
        """Its length."""
        return float(np.linalg.norm(self.vector.astype(np.float64)))

    def steer(
        self,
        strength: float = 1.0,
        *,
        steps: Sequence[int] | Literal["own"] | None = "own",
        positions: Sequence[int] | None = None,
        phase: interventions.Phase = "both",
    ) -> interventions.Steer:
        """The intervention that adds `strength` times the vector, as it is: not normalised.

        Args:
            strength: How much; negative: the other way.
            steps: At which steps; `own`: those it is meant for; None: all.
            positions: Absolute positions, negative ones from the end of the step's prompt (-1 is the last prompt token);
                None: all.
            phase: `prefill` for the prompt only, as published; `decode` for generated tokens only.
        """
        held = self.steps if isinstance(steps, str) else steps
        return interventions.Steer(
            site=self.site, direction=self.vector, strength=strength, steps=held, positions=positions, phase=phase
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON data, bit by bit; `from_json` reads it back."""
        return {
            "site": self.site,
            "vector": arrays.to_json(self.vector),
            "positive": self.positive,
            "negative": self.negative,
            "steps": None if self.steps is None else list(self.steps),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Direction":
        """Reads what `to_json` wrote.

        Raises:
            AnalysisError: It wrote no such thing.
            SiteError: There is no such Site.
            InterventionError: The vector is no vector of finite numbers.
        """
        if not isinstance(data, Mapping):
            raise errors.AnalysisError(f"a direction must be an object, got {type(data).__name__}")
        if lost := {"site", "vector", "positive", "negative", "steps"} - data.keys():
            raise errors.AnalysisError(f"this is no direction: it lacks {', '.join(sorted(lost))}")
        site, steps = data["site"], data["steps"]
        if not isinstance(site, str):
            raise errors.AnalysisError(f"the site of a direction must be a name, got {type(site).__name__}")
        counts = [data["positive"], data["negative"], *(steps if isinstance(steps, list) else ())]
        if not (steps is None or isinstance(steps, list)) or not all(type(n) is int and n >= 0 for n in counts):
            raise errors.AnalysisError("the rows and steps of a direction must be whole numbers")
        vector = arrays.from_json(data["vector"])
        if vector.ndim != 1:
            raise errors.AnalysisError(f"a direction must be a vector, got an array of shape {vector.shape}")
        return cls(site, vector, data["positive"], data["negative"], None if steps is None else tuple(steps))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PerStep:
    """One direction for each step.

    Attributes:
        directions: By step, in order.
        left_out: Steps without one, and why. Steering leaves these steps alone.
    """

    directions: Mapping[int, Direction]
    left_out: Mapping[int, str]

    def steer(
        self, strength: float = 1.0, *, positions: Sequence[int] | None = None, phase: interventions.Phase = "both"
    ) -> tuple[interventions.Steer, ...]:
        """One intervention for each step; see `Direction.steer`."""
        return tuple(one.steer(strength, positions=positions, phase=phase) for one in self.directions.values())


def contrastive(
    features: Float[np.ndarray, "row d_model"],
    labels: Bool[np.ndarray, "row"],
    *,
    site: str,
    steps: tuple[int, ...] | None = None,
    least: int = 5,
) -> Direction:
    """The direction from the rows labelled False to those labelled True.

    Args:
        features: Values at the Site, one row each.
        labels: Which side a row is on. With True for valid, the direction points to valid.
        site: Where the features come from.
        steps: Steps it is meant for; None: all.
        least: Rows that each side must have.

    Raises:
        AnalysisError: A side has too few rows.
    """
    reason = _too_few(labels, least)
    if reason:
        where = "" if steps is None else f", steps {list(steps)}"
        raise errors.AnalysisError(f"no direction at {site}{where}: {reason}; collect more episodes, or lower least")
    return Direction(site, _difference(features, labels), int(labels.sum()), int((~labels).sum()), steps)


def per_step(
    features: Float[np.ndarray, "row d_model"],
    labels: Bool[np.ndarray, "row"],
    steps: Int[np.ndarray, "row"],
    *,
    site: str,
    least: int = 5,
) -> PerStep:
    """The contrastive direction of each step by itself.

    A step with too few rows on a side is left out, with the reason; so is one whose rows are all alike, as at the last
    prompt token of a first step that everybody is asked in the same words.
    """
    found: dict[int, Direction] = {}
    left_out: dict[int, str] = {}
    for step in map(int, np.unique(steps)):
        here = steps == step
        reason = _too_few(labels[here], least) or _alike(features[here])
        if reason:
            left_out[step] = reason
        else:
            found[step] = contrastive(features[here], labels[here], site=site, steps=(step,), least=least)
    return PerStep(found, left_out)


def random_directions(direction: Direction, n: int, rng: np.random.Generator) -> list[Direction]:
    """Directions drawn evenly from all there are, each of the same norm."""
    drawn = rng.standard_normal((n, direction.vector.size))
    return [_like(direction, vector) for vector in drawn]


def shuffled_direction(
    features: Float[np.ndarray, "row d_model"],
    labels: Bool[np.ndarray, "row"],
    episodes: Shaped[np.ndarray, "row"],
    rng: np.random.Generator,
    *,
    like: Direction,
    steps: Int[np.ndarray, "row"] | None = None,
) -> Direction:
    """What the same recipe makes of labels that belong to other episodes, as it comes: mostly it is shorter.

    Labels change hands as `permuted_labels` does it: what the recipe picks up apart from the labels' meaning (how early
    steps differ from late ones, how rows of an episode resemble each other) stays in, and has to be beaten too. It is not
    brought to the norm of `like`: where the rows differ mostly along one line, stretching what is left of chance would
    give that line back, with a random sign.

    Raises:
        AnalysisError: All episodes have the same labels, so that nothing changes when they swap them.
    """
    mixed = permuted_labels(labels, episodes, steps, n=ATTEMPTS, rng=rng)
    changed = np.flatnonzero((mixed != labels).any(axis=1))
    if not len(changed):
        raise errors.AnalysisError(
            f"no shuffled direction at {like.site}: the {len(np.unique(episodes))} episodes have the same labels at every "
            "step, so swapping them changes nothing; collect episodes that differ"
        )
    return dataclasses.replace(like, vector=_difference(features, mixed[changed[0]]), positive=0, negative=0)


def orthogonal_direction(
    direction: Direction, rng: np.random.Generator, *, within: Float[np.ndarray, "row d_model"] | None = None
) -> Direction:
    """A random direction at right angles, of the same norm.

    Args:
        direction: What it is to have nothing of.
        rng: Draws it.
        within: Features. If given, it is drawn with their covariance: it looks like what is really there. A direction
            drawn evenly lies mostly where the model has nothing, and is an easy control to beat.

    Raises:
        AnalysisError: The features vary along the direction only.
    """
    unit = direction.vector.astype(np.float64)
    unit = unit / (np.linalg.norm(unit) or 1.0)
    if within is None:
        drawn = rng.standard_normal(unit.size)
    else:
        rows = within.astype(np.float64)
        drawn = rng.standard_normal(len(rows)) @ (rows - rows.mean(axis=0))
    left = drawn - (drawn @ unit) * unit
    left -= (left @ unit) * unit  # once more, for what rounding left
    if np.linalg.norm(left) <= 1e-9 * (np.linalg.norm(drawn) or 1.0):
        raise errors.AnalysisError(
            f"nothing orthogonal at {direction.site}: the features do not vary but along the direction itself"
        )
    return _like(direction, left)


def permuted_labels(
    labels: Bool[np.ndarray, "row"],
    episodes: Shaped[np.ndarray, "row"],
    steps: Int[np.ndarray, "row"] | None = None,
    *,
    n: int,
    rng: np.random.Generator,
) -> Bool[np.ndarray, "n row"]:
    """Labels handed from episode to episode, whole sequences at a time, `n` times over.

    1. Draw a permutation of all episodes: each gets its labels from one other.
    2. At a step that the other did not reach, go on to the one that it gets its own from, and so on.

    Episodes of one length swap whole sequences: runs of invalid messages stay runs, and mostly so where some ended early.
    Every step keeps its number of True and False. Permuting row by row would break the runs, and make noise look
    smaller than it is.

    Args:
        labels: One for each row.
        episodes: Which episode a row is of.
        steps: Which step; left out: the how-manieth row of its episode.
        n: How many times.
        rng: Draws the orders.

    Raises:
        AnalysisError: Two rows of one step of one episode.
    """
    names, which = np.unique(episodes, return_inverse=True)
    steps = _places(which) if steps is None else steps
    giver = rng.permuted(np.tile(np.arange(len(names)), (n, 1)), axis=1)
    mixed = np.empty((n, len(labels)), dtype=bool)
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        row_of = np.full(len(names), -1)
        row_of[which[rows]] = rows
        if len(np.unique(which[rows])) < len(rows):
            twice = next(names[which[row]] for row in rows if row_of[which[row]] != row)
            raise errors.AnalysisError(
                f"step {step} of episode {twice} has several rows, expected one: pool them first"
            )
        source = giver[:, which[rows]]
        while (absent := row_of[source] < 0).any():
            source = np.where(absent, np.take_along_axis(giver, source, axis=1), source)
        mixed[:, rows] = labels[row_of[source]]
    return mixed


def split_episodes(
    episodes: Shaped[np.ndarray, "row"], share: float, rng: np.random.Generator
) -> Bool[np.ndarray, "row"]:
    """Which rows are for training: those of a random share of the episodes, whole ones; at least one is on each side.

    Raises:
        AnalysisError: Fewer than two episodes, or a share that leaves a side empty.
    """
    names, which = np.unique(episodes, return_inverse=True)
    if len(names) < 2 or not 0 < share < 1:
        raise errors.AnalysisError(
            f"{len(names)} episodes cannot be split with share={share}: it takes two or more, and a share between 0 and 1"
        )
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    training = np.zeros(len(names), dtype=bool)
    training[rng.permutation(len(names))[:count]] = True
    return training[which]


def _too_few(labels: Bool[np.ndarray, "row"], least: int) -> str:
    """Why these rows give no direction; empty if they do."""
    positive, negative = int(labels.sum()), int((~labels).sum())
    if min(positive, negative) >= max(least, 1):
        return ""
    return f"{positive} rows labelled True and {negative} False, expected at least {max(least, 1)} of each"


def _alike(features: Float[np.ndarray, "row d_model"]) -> str:
    """Why rows that do not differ, but for rounding, give no direction; empty if they do differ."""
    if np.ptp(features, axis=0).max() > 1e-5 * np.abs(features).max():
        return ""
    return f"its {len(features)} rows are all alike"


def _difference(
    features: Float[np.ndarray, "row d_model"], labels: Bool[np.ndarray, "row"]
) -> Float[np.ndarray, "d_model"]:
    return features[labels].mean(axis=0, dtype=np.float64) - features[~labels].mean(axis=0, dtype=np.float64)


def _like(direction: Direction, vector: Float[np.ndarray, "d_model"]) -> Direction:
    """A control: another vector of the same norm, for the same steps."""
    length = np.linalg.norm(vector)
    return Direction(direction.site, vector * (direction.norm / (length or 1.0)), steps=direction.steps)


def _places(which: Int[np.ndarray, "row"]) -> Int[np.ndarray, "row"]:
    """The how-manieth row of its episode each row is."""
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], which[order])
    places = np.empty(len(which), dtype=np.int64)
    places[order] = np.arange(len(which)) - starts
    return places
