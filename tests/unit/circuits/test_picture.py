from xml.etree import ElementTree

import numpy as np
import pytest

from sonde.circuits import graph, layout, picture, scores
from sonde.core import errors

SMALL = graph.Graph(2, 4, 4)
LARGE = graph.Graph(30, 9, 3)
SVG = "{http://www.w3.org/2000/svg}"


def scored(whole, seed=0):
    values = np.where(whole.allowed, np.random.default_rng(seed).standard_normal(whole.allowed.shape), np.nan)
    cost = scores.Cost(1.0, 1.0, 0.1)
    return scores.Scores(graph=whole, method="m", level="edge", values=values, metric="kl", ablation="zero", cost=cost)


@pytest.mark.parametrize(("whole", "count"), [(SMALL, 14), (LARGE, 100)])
def test_every_edge_is_drawn_with_its_name_and_score(whole, count):
    found = scored(whole)
    circuit = found.circuit(n_edges=count)
    tree = ElementTree.fromstring(picture.to_svg(circuit, scores=found))
    titles = [path.find(f"{SVG}title").text for path in tree.iter(f"{SVG}path")]
    names = {title.split(": ")[0] for title in titles}
    assert set(circuit.names) <= names
    assert all(name.split("->")[0].endswith(">") for name in names - set(circuit.names))


@pytest.mark.parametrize("view", ["split", "merged"])
def test_edges_run_upward_between_their_nodes_and_within_the_picture(view):
    found = scored(LARGE)
    drawn = layout.of(found.circuit(n_edges=200), scores=found, view=view)
    for curve in drawn.curves:
        (_, low), (_, high) = curve.points[0], curve.points[-1]
        assert low > high
    for x, y in [point for curve in drawn.curves for point in curve.points] + [(m.x, m.y) for m in drawn.marks]:
        assert 0 < x < drawn.width
        assert 0 < y < drawn.height


@pytest.mark.parametrize("whole", [SMALL, LARGE, graph.Graph(40, 32, 8)])
def test_nodes_never_overlap_and_later_layers_are_higher(whole):
    marks = layout.of(graph.Circuit.empty(whole)).marks
    places = np.array([(one.x, one.y) for one in marks])
    apart = np.abs(places[:, None] - places[None])
    near = (apart < 2 * layout.RADIUS).all(axis=2) & ~np.eye(len(marks), dtype=bool)
    assert not near.any()
    height = {one.name: one.y for one in marks}
    assert height["input"] > height["a0.h0"] > height["m0"] > height["a1.h0"] > height["logits"]


def test_the_strongest_edge_is_the_widest_and_drawn_last():
    found = scored(SMALL)
    drawn = layout.of(found.circuit(n_edges=14), scores=found)
    assert drawn.curves[-1].name == found.ranking()[0][0]


def test_only_nodes_of_the_circuit_are_large():
    circuit = graph.Circuit.of(SMALL, ["input->a0.h1<q>", "a0.h1->logits"])
    assert {one.name for one in layout.of(circuit).marks if one.kept} == {"input", "a0.h1", "logits"}


def test_texts_are_escaped_and_the_same_circuit_gives_the_same_bytes(tmp_path):
    circuit = scored(SMALL).circuit(n_edges=5)
    one, two = (picture.save_svg(circuit, tmp_path / name, title="<script>x</script>") for name in ("a.svg", "b.svg"))
    assert one.read_bytes() == two.read_bytes()
    assert b"<script" not in one.read_bytes()


@pytest.mark.parametrize(("whole", "count"), [(SMALL, 14), (LARGE, 100)])
def test_the_same_picture_is_drawn_as_png(whole, count, tmp_path):
    found = scored(whole)
    path = picture.save_png(found.circuit(n_edges=count), tmp_path / "c.png", scores=found, title="$x$")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_empty_circuit_is_drawn_and_too_large_a_one_is_refused():
    assert "<path" not in picture.to_svg(graph.Circuit.empty(SMALL))
    with pytest.raises(errors.RequestError, match="smaller circuit"):
        picture.to_svg(graph.Circuit.full(LARGE))
