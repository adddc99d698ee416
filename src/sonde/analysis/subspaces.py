"""In which directions of the stream does a variable live, and does moving only those move the answer?

    place = subspaces.Place(layer=3, positions=[11, 9, ...])                   # one position per pair
    states = subspaces.states(model, [pair.clean for pair in pairs], place)
    fitted = subspaces.of_labels(states, digits, components=10)                # where the label can be read
    learned = subspaces.rotated(model, training_pairs, training_place, 10)     # where moving it has an effect
    found = subspaces.compare(model, held_out_pairs, place, learned.basis)
    found.inside, found.random, found.whole, found.outside                     # rates with intervals

An interchange puts the part of the counterfactual's stream that lies inside the subspace into the clean run, at one
layer and position, and leaves the rest: h + (h' - h) B'B. It succeeds if the most likely token becomes the
counterfactual answer. Beside it stand the same with random subspaces of equal dimension, with the whole stream, and
with all that is outside. Layers count as in tracing: L is the stream into layer L, the number of layers that after the
last.

`of_labels` (after Wu, Geiger, Milliere 2025):
1. Principal components of the states.
2. A classifier of the label on them, with an L1 penalty (one against the rest), on three quarters of the rows.
3. The components that contribute most (total weight times spread) are the basis; the quarter left out says how well
   they tell the label.

`rotated` (distributed alignment search, after Geiger et al. 2024):
1. An orthogonal map from the stream to the subspace, by torch's parametrization.
2. Interchange through it in a batch of pairs; the loss is that of the counterfactual answer; Adam turns the map.
3. Give it other pairs to be judged on.

Costs: states and comparisons a forward pass per pair and row, `rotated` a forward and a backward pass per pair and step.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from sonde.analysis import jackknife, stats
from sonde.analysis.tracing import pairs as tracing_pairs
from sonde.core import errors
from sonde.models import model as models_model
from sonde.models import taps

Pairs = Sequence[tracing_pairs.TracePair]
Basis = Float[np.ndarray, "component d_model"]
BATCH = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where in the model: a layer, and one position for each pair (or one for all)."""

    layer: int
    positions: Sequence[int]

    def site(self, model: models_model.Model) -> str:
        """The Site of the layer.

        Raises:
            SiteError: The model has no such layer.
        """
        last = model.cfg.n_layers
        if not 0 <= self.layer <= last:
            raise errors.SiteError(
                f"no layer {self.layer}: the stream has 0 to {last}, {last} being after the last layer"
            )
        at_end = self.layer == last
        return f"blocks.{last - 1}.hook_resid_post" if at_end else f"blocks.{self.layer}.hook_resid_pre"

    def of(self, chosen: Sequence[int] | Int[np.ndarray, "chosen"], count: int) -> list[int]:
        """The positions of some of the rows.

        Raises:
            RequestError: There is neither one position nor one per row.
        """
        if len(self.positions) not in (1, count):
            raise errors.RequestError(
                f"{len(self.positions)} positions for {count} rows: give one per row, or one for all of them"
            )
        return [int(self.positions[0 if len(self.positions) == 1 else int(at)]) for at in chosen]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A subspace in which a label can be read.

    Attributes:
        basis: Orthonormal rows: principal components, the most telling first.
        accuracy: Share of left-out rows that the classifier on these components gets right.
        majority: The same for the most frequent label.
        variance: Share of the states' variance that lies inside.
    """

    basis: Basis
    accuracy: stats.Estimate
    majority: float
    variance: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rotated:
    """A subspace that was learned by interchanges: its basis (orthonormal rows), and the loss of every step."""

    basis: Basis
    losses: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """How often interchanges bring the counterfactual answer about.

    Attributes:
        inside: Of the subspace.
        random: Of random subspaces of equal dimension; pairs are the clusters.
        whole: Of the whole stream: the most that can be had here.
        outside: Of all that is not in the subspace.
    """

    inside: stats.Estimate
    random: stats.Estimate
    whole: stats.Estimate
    outside: stats.Estimate

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How `rotated` learns: steps, pairs per step, learning rate, and the seed of start and order."""

    steps: int = 200
    batch: int = 64
    rate: float = 0.01
    seed: int = 0


def states(model: models_model.Model, rows: Sequence[Sequence[int]], place: Place) -> Float[np.ndarray, "row d_model"]:
    """The stream at the place, one vector per row of tokens (rows may differ in length)."""
    found = np.zeros((len(rows), model.cfg.d_model))
    site = place.site(model)
    for chosen in _batches([len(row) for row in rows], BATCH):
        _, cache = model.run_with_cache(torch.tensor([list(rows[at]) for at in chosen]), site)
        where = torch.tensor(place.of(chosen, len(rows)))
        found[chosen] = cache[site][torch.arange(len(chosen)), where].double().cpu().numpy()
    return found


def of_labels(
    features: Float[np.ndarray, "row d_model"],
    labels: Shaped[np.ndarray, "row"],
    *,
    components: int = 10,
    penalty: float = 1.0,
    seed: int = 0,
) -> Fitted:
    """Finds the principal components in which a label can be read.

    Args:
        features: The states.
        labels: What to read off them.
        components: Dimension of the subspace.
        penalty: Strength of the L1 penalty.
        seed: Draws the rows that are left out.

    Raises:
        AnalysisError: Too few rows, one label only, or more components than there are.
    """
    model_selection = jackknife.imported("sklearn.model_selection", "subspaces of labels")
    known, counts = np.unique(labels, return_counts=True)
    if len(known) < 2 or counts.min() < 4:
        raise errors.AnalysisError(
            f"a subspace of labels needs two labels with four rows each, got {dict(zip(known.tolist(), counts.tolist(), strict=True))}"
        )
    kept, left = model_selection.train_test_split(
        np.arange(len(labels)), test_size=0.25, random_state=seed, stratify=labels
    )
    centred = features - features[kept].mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred[kept], full_matrices=False)
    axes, sizes = axes[sizes > 1e-8 * sizes[0]], sizes[sizes > 1e-8 * sizes[0]]
    if not 1 <= components <= len(axes):
        raise errors.AnalysisError(f"the states span {len(axes)} dimensions, so {components} components cannot be had")
    scale = sizes[0] / np.sqrt(len(kept))
    first = _classifier(penalty).fit(centred[kept] @ axes.T / scale, labels[kept])
    weights = np.sum([np.abs(one.coef_[0]) for one in first.estimators_], axis=0)
    basis = axes[np.argsort(-weights * sizes, kind="stable")[:components]]  # weight times spread: what it contributes
    read = _classifier(penalty).fit(centred[kept] @ basis.T / scale, labels[kept])
    right = read.predict(centred[left] @ basis.T / scale) == labels[left]
    inside = float(((centred @ basis.T) ** 2).sum() / (centred**2).sum())
    share = stats.mean_interval(right.astype(np.float64), np.arange(len(left)))
    return Fitted(basis, share, float(counts.max() / counts.sum()), inside)


def rotated(
    model: models_model.Model, pairs: Pairs, place: Place, components: int, *, learning: Learning | None = None
) -> Rotated:
    """Learns the subspace in which interchanges have the most effect, from pairs of equal length.

    Raises:
        RequestError: The pairs differ in length, or there are more components than dimensions.
    """
    learning, width = learning or Learning(), model.cfg.d_model
    if len({len(pair) for pair in pairs}) != 1 or not 1 <= components <= width:
        raise errors.RequestError(
            f"rotated needs pairs of one length and 1 to {width} components, got lengths "
            f"{sorted({len(pair) for pair in pairs})} and {components} components"
        )
    rng, losses = np.random.default_rng(learning.seed), []
    sources = torch.from_numpy(states(model, [pair.counterfactual for pair in pairs], place)).to(model.device)
    turn = _turn(width, components, learning.seed).to(model.device)
    optimizer = torch.optim.Adam(turn.parameters(), lr=learning.rate)
    with model.lock, _frozen(model.hf), torch.enable_grad():
        for _ in range(learning.steps):
            chosen = rng.permutation(len(pairs))[: learning.batch]
            basis = turn.weight

            def moved(change: Tensor, basis: Tensor = basis) -> Tensor:
                return change @ basis.T @ basis

            logits = _interchanged(model, pairs, chosen, place, sources, moved)
            wanted = torch.tensor([pairs[at].counterfactual_answer for at in chosen], device=model.device)
            loss = F.cross_entropy(logits.float(), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    with torch.no_grad():
        return Rotated(turn.weight.double().cpu().numpy().copy(), tuple(losses))


def random(width: int, components: int, seed: int) -> Basis:
    """A random subspace: orthonormal rows, no direction preferred."""
    drawn = np.random.default_rng(seed).standard_normal((width, components))
    return np.linalg.qr(drawn)[0].T.copy()


def successes(
    model: models_model.Model,
    pairs: Pairs,
    place: Place,
    basis: Basis | None = None,
    *,
    part: Literal["inside", "outside"] = "inside",
) -> Float[np.ndarray, "pair"]:
    """For each pair 1 if the interchange brings the counterfactual answer about, else 0; without a basis: the whole stream."""
    sources = torch.from_numpy(states(model, [pair.counterfactual for pair in pairs], place)).to(model.device)
    matrix = None if basis is None else torch.from_numpy(basis).to(model.device)

    def moved(change: Tensor) -> Tensor:
        if matrix is None:
            return change
        rows = matrix.to(change.dtype)
        within = change @ rows.T @ rows
        return within if part == "inside" else change - within

    found = np.zeros(len(pairs))
    with model.lock, torch.no_grad():
        for chosen in _batches([len(pair) for pair in pairs], BATCH):
            top = _interchanged(model, pairs, chosen, place, sources, moved).argmax(dim=-1).tolist()
            found[chosen] = [one == pairs[at].counterfactual_answer for one, at in zip(top, chosen, strict=True)]
    return found


def compare(
    model: models_model.Model, pairs: Pairs, place: Place, basis: Basis, *, draws: int = 5, seed: int = 0
) -> Comparison:
    """Success rates of interchanges inside a subspace, and of its controls, with intervals over pairs.

    Args:
        model: The model.
        pairs: Pairs that the subspace was not made from.
        place: Where.
        basis: Orthonormal rows.
        draws: How many random subspaces.
        seed: Draws them.
    """
    every = np.arange(len(pairs))
    width, components = basis.shape[1], basis.shape[0]
    by_chance = [successes(model, pairs, place, random(width, components, seed + at)) for at in range(draws)]
    rates = {
        "inside": successes(model, pairs, place, basis),
        "whole": successes(model, pairs, place),
        "outside": successes(model, pairs, place, basis, part="outside"),
    }
    plain = {name: stats.mean_interval(values, every) for name, values in rates.items()}
    return Comparison(random=stats.mean_interval(np.concatenate(by_chance), np.tile(every, draws)), **plain)


def _interchanged(
    model: models_model.Model,
    pairs: Pairs,
    chosen: Int[np.ndarray, "chosen"],
    place: Place,
    sources: Float[Tensor, "pair d_model"],
    moved: Callable[[Tensor], Tensor],
) -> Float[Tensor, "chosen vocab"]:
    """Final logits of clean runs in which `moved(counterfactual - clean)` is added at the place."""
    where = torch.tensor(place.of(chosen, len(pairs)), device=model.device)
    rows = torch.arange(len(chosen), device=model.device)

    def change(stream: Tensor) -> Tensor:
        own = stream[rows, where]
        added = moved(sources[torch.from_numpy(chosen)].to(own.dtype) - own)
        return stream.index_put((rows, where), added, accumulate=True)

    tokens = torch.tensor([pairs[at].clean for at in chosen], device=model.device)
    with _changed(model.parts.taps[place.site(model)], change):
        return model.hf(input_ids=tokens, use_cache=False).logits[:, -1]


@contextlib.contextmanager
def _changed(tap: taps.Tap, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replaces the value of a Site by a function of it, gradients included, for a block."""

    def before(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if given:
            return (change(given[0]), *given[1:]), named
        return given, {**named, "hidden_states": change(named["hidden_states"])}

    def after(_: Any, __: Any, given: Any) -> Any:
        changed = change(taps.first_tensor(given))
        return (changed, *given[1:]) if isinstance(given, tuple) else changed

    if tap.side == "in":
        handle = tap.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = tap.module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """No gradients for the network's own weights, for a block."""
    learning = [value for value in network.parameters() if value.requires_grad]
    for value in learning:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in learning:
            value.requires_grad_(True)


def _turn(width: int, components: int, seed: int) -> Any:
    """An orthogonal map from the stream to the subspace, to be learned."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = nn.Linear(width, components, bias=False)
        nn.init.orthogonal_(plain.weight)
        return nn.utils.parametrizations.orthogonal(plain)


def _classifier(penalty: float) -> Any:
    linear_model = jackknife.imported("sklearn.linear_model", "subspaces of labels")
    multiclass = jackknife.imported("sklearn.multiclass", "subspaces of labels")
    one = linear_model.LogisticRegression(C=1 / penalty, l1_ratio=1, solver="liblinear", random_state=0, max_iter=1000)
    return multiclass.OneVsRestClassifier(one)


def _batches(lengths: Sequence[int], size: int) -> Iterator[Int[np.ndarray, "chosen"]]:
    """Indices of rows of equal length, some at a time."""
    every = np.array(lengths)
    for length in np.unique(every):
        same = np.flatnonzero(every == length)
        yield from (same[start : start + size] for start in range(0, len(same), size))
