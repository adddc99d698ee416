"""Where in a model: Site names, spelled and defined as TransformerLens does.

A Site is a place whose value can be recorded or changed. Names are parsed, never guessed: a name that does not parse,
or that a model does not have, raises `SiteError` with the nearest known name. Costs nothing but string work.

| Site                              | shape                        | value |
|-----------------------------------|------------------------------|-------|
| `hook_embed`                      | batch pos d_model            | token embedding (scaled, where the family scales it) |
| `hook_pos_embed`                  | batch pos d_model            | learned position embedding (GPT-2) |
| `blocks.L.hook_resid_pre`         | batch pos d_model            | residual stream entering layer L |
| `blocks.L.hook_resid_mid`         | batch pos d_model            | between attention and MLP; parallel blocks have none |
| `blocks.L.hook_resid_post`        | batch pos d_model            | leaving layer L |
| `blocks.L.attn.hook_q` `k` `v`    | batch pos head d_head        | before rotary; `k` and `v` per key-value head |
| `blocks.L.attn.hook_attn_scores`  | batch head query key         | before softmax, masked cells -inf |
| `blocks.L.attn.hook_pattern`      | batch head query key         | after softmax |
| `blocks.L.attn.hook_z`            | batch pos head d_head        | weighted values |
| `blocks.L.attn.hook_result`       | batch pos head d_model       | each head's own part of the attention output, before a post-norm |
| `blocks.L.hook_attn_out`          | batch pos d_model            | what attention adds (after a post-norm, where there is one) |
| `blocks.L.mlp.hook_pre` `post`    | batch pos d_mlp              | before the non-linearity (the gate, if gated); entering the last projection |
| `blocks.L.mlp.hook_pre_linear`    | batch pos d_mlp              | the linear branch of a gated MLP |
| `blocks.L.hook_mlp_out`           | batch pos d_model            | what the MLP adds |
| `ln_final.hook_out`               | batch pos d_model            | after the final norm |
| `unembed.hook_out`                | batch pos d_vocab            | the logits, before a soft cap (Gemma 2) |
"""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sonde.core import errors

GLOBAL_KINDS = ("hook_embed", "hook_pos_embed", "ln_final.hook_out", "unembed.hook_out")
BLOCK_KINDS = (
    "hook_resid_pre",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_attn_scores",
    "attn.hook_pattern",
    "attn.hook_z",
    "attn.hook_result",
    "hook_attn_out",
    "hook_resid_mid",
    "mlp.hook_pre",
    "mlp.hook_pre_linear",
    "mlp.hook_post",
    "hook_mlp_out",
    "hook_resid_post",
)
QUERY_KEY_KINDS = frozenset({"attn.hook_attn_scores", "attn.hook_pattern"})
HEAD_KINDS = frozenset({"attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z", "attn.hook_result"})
#: Recorded only when named: `result` is n_heads times the residual stream and `attn_scores` follows from `pattern`.
COSTLY_KINDS = frozenset({"attn.hook_attn_scores", "attn.hook_result"})

LONGEST = 200
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_SHORT = re.compile(r"([a-z_]+?)(\d+)")
#: TransformerLens' other words for Sites, in its short forms.
_ALIASES = {"attn": "pattern", "attn_logits": "attn_scores", "query": "q", "key": "k", "value": "v"}
_ALIASES |= {"mlp_pre": "pre", "mlp_post": "post"}
_KINDS = {kind.rpartition("hook_")[2]: kind for kind in (*GLOBAL_KINDS[:2], *BLOCK_KINDS)}

SiteFilter = Callable[[str], bool] | str | Sequence[str] | None


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Site:
    """One named place: a kind such as `attn.hook_z`, and the layer unless it stands outside the blocks."""

    kind: str
    layer: int | None = None

    @classmethod
    def parse(cls, name: str) -> "Site":
        """Reads a TransformerLens name.

        Raises:
            SiteError: The name is no Site of any model; the message suggests the nearest.
        """
        if len(name) > LONGEST:
            raise errors.SiteError(f"a site is a name of at most {LONGEST} characters, got {name!r:.80}")
        block = _BLOCK.fullmatch(name)
        if block and block[2] in BLOCK_KINDS:
            return cls(block[2], int(block[1]))
        if name in GLOBAL_KINDS:
            return cls(name)
        layer = block[1] if block else "0"
        known = [*GLOBAL_KINDS, *(f"blocks.{layer}.{kind}" for kind in BLOCK_KINDS)]
        raise errors.SiteError(f"no site {name!r}{errors.suggest(name, known)}")

    def __str__(self) -> str:
        """The name that `parse` reads back."""
        return self.kind if self.layer is None else f"blocks.{self.layer}.{self.kind}"

    @property
    def has_heads(self) -> bool:
        """Whether the value has a head axis."""
        return self.kind in HEAD_KINDS or self.kind in QUERY_KEY_KINDS

    @property
    def is_query_key(self) -> bool:
        """Whether the value is query by key, so that its last axis grows with the context."""
        return self.kind in QUERY_KEY_KINDS


def full_name(short: Any, n_layers: int) -> str | None:
    """The Site name that TransformerLens' short form stands for.

    Args:
        short: `("resid_post", 0)`, `("pattern", -1, "attn")`, `"k6"` or `"embed"`. What stands behind the layer is not
            needed and not looked at.
        n_layers: What a negative layer is counted from.

    Returns:
        The name; None for what is no short form. The model need not have the Site.
    """
    name, layer, *_ = (*short, None, None) if isinstance(short, tuple) else (short, None)
    if isinstance(name, str) and layer is None and (both := _SHORT.fullmatch(name)):
        name, layer = both[1], int(both[2])
    kind = _KINDS.get(_ALIASES.get(name, name)) if isinstance(name, str) else None
    if kind is None or (kind in GLOBAL_KINDS) != (layer is None) or not isinstance(layer, int | None):
        return None
    return kind if layer is None else f"blocks.{layer + n_layers if layer < 0 else layer}.{kind}"


def select(wanted: SiteFilter, known: Iterable[str]) -> list[str]:
    """Resolves a filter against the Sites a model has, in the model's order.

    Args:
        wanted: None for all but the costly ones; a name; a wildcard such as `blocks.*.hook_resid_post`; a list of
            those; or a predicate on names.
        known: The model's Site names.

    Raises:
        SiteError: A name or wildcard that matches nothing, or an empty choice.
    """
    known = list(known)
    if wanted is None:
        return [name for name in known if Site.parse(name).kind not in COSTLY_KINDS]
    if isinstance(wanted, str):
        wanted = [wanted]
    if callable(wanted):
        hits = [name for name in known if wanted(name)]
    else:
        chosen: set[str] = set()
        for pattern in wanted:
            found = fnmatch.filter(known, str(pattern))
            if not found:
                raise errors.SiteError(f"no site {str(pattern)!r} in this model{_hint(str(pattern), known)}")
            chosen.update(found)
        hits = [name for name in known if name in chosen]
    if not hits:
        raise errors.SiteError(
            f"the site filter chose none of the model's {len(known)} sites, for example {known[0]!r}"
        )
    return hits


def _hint(pattern: str, known: list[str]) -> str:
    block = _BLOCK.fullmatch(pattern)
    layers = {site.layer for site in map(Site.parse, known) if site.layer is not None}
    if block and block[2] in BLOCK_KINDS and layers and int(block[1]) not in layers:
        return f": it has layers 0 to {max(layers)}"
    return errors.suggest(pattern, known)
