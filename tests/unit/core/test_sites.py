"""Site names: parsed, never guessed."""

import pytest

from sonde.core import errors, sites

KNOWN = [
    "hook_embed",
    *(f"blocks.{layer}.{kind}" for layer in range(12) for kind in sites.BLOCK_KINDS),
    "ln_final.hook_out",
    "unembed.hook_out",
]


@pytest.mark.parametrize("name", [*sites.GLOBAL_KINDS, *(f"blocks.11.{kind}" for kind in sites.BLOCK_KINDS)])
def test_every_name_reads_back_as_itself(name):
    assert str(sites.Site.parse(name)) == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("blocks.3.hook_mlpout", "blocks.3.hook_mlp_out"),
        ("blocks.3.attn.hook_zz", "blocks.3.attn.hook_z"),
        ("hook_embedd", "hook_embed"),
        ("ln_final.hook_normalized", "ln_final.hook_out"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(wrong, right):
    with pytest.raises(errors.SiteError, match=f"no site {wrong!r}; did you mean {right!r}"):
        sites.Site.parse(wrong)


@pytest.mark.parametrize("wrong", ["blocks.x.hook_mlp_out", "blocks.-1.hook_mlp_out", "", "blocks.1.hook_embed"])
def test_a_name_that_is_no_name_is_refused(wrong):
    with pytest.raises(errors.SiteError, match="no site"):
        sites.Site.parse(wrong)


def test_a_wildcard_chooses_in_the_order_of_the_model():
    chosen = sites.select(["blocks.*.hook_resid_post", "hook_embed"], KNOWN)
    assert chosen == ["hook_embed", *(f"blocks.{layer}.hook_resid_post" for layer in range(12))]
    assert sites.select("blocks.1*.hook_mlp_out", KNOWN) == [f"blocks.{n}.hook_mlp_out" for n in (1, 10, 11)]
    assert sites.select("blocks.[02].attn.hook_[qk]", KNOWN) == [
        f"blocks.{layer}.attn.hook_{letter}" for layer in (0, 2) for letter in "qk"
    ]


def test_nothing_chosen_means_all_but_the_costly_ones():
    chosen = sites.select(None, KNOWN)
    assert {sites.Site.parse(name).kind for name in KNOWN} - {sites.Site.parse(name).kind for name in chosen} == {
        "attn.hook_attn_scores",
        "attn.hook_result",
    }


def test_a_predicate_chooses_by_name():
    assert sites.select(lambda name: name.endswith("9.hook_mlp_out"), KNOWN) == ["blocks.9.hook_mlp_out"]


def test_a_choice_of_nothing_is_refused():
    for wanted, told in (
        ("blocks.40.hook_mlp_out", "layers 0 to 11"),
        ("blocks.*.hook_nothing", "no site"),
        (lambda name: False, "chose none"),
        ([], "chose none"),
    ):
        with pytest.raises(errors.SiteError, match=told):
            sites.select(wanted, KNOWN)
