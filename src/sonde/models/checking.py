"""Which requests can run at all? Asked before they are queued, so that whoever made one learns what is wrong with it."""

from sonde.core import errors, interventions, sites
from sonde.models import requests, taps
from sonde.models import wiring as model_wiring


def check(request: requests.Request, parts: model_wiring.Parts) -> None:
    """Refuses a request that cannot run, before it is queued.

    Raises:
        RequestError: Empty prompt or a token the model does not have.
        ContextError: Prompt and new tokens do not fit.
        InterventionError: An intervention does not fit the model.
    """
    cfg = parts.cfg
    if not request.tokens:
        raise errors.RequestError("the prompt is empty: give at least one token (a BOS token will do)")
    if min(request.tokens) < 0 or max(request.tokens) >= cfg.d_vocab:
        raise errors.RequestError(
            f"token ids must be 0 to {cfg.d_vocab - 1}, got {min(request.tokens)} to {max(request.tokens)}"
        )
    need = len(request.tokens) + request.sampling.max_new_tokens
    if need > cfg.n_ctx:
        raise errors.ContextError(
            f"{len(request.tokens)} prompt tokens and max_new_tokens={request.sampling.max_new_tokens} make {need}, but "
            f"the context of {cfg.model_name} is {cfg.n_ctx}: shorten the prompt, lower max_new_tokens, or choose a "
            "context policy (drop_oldest_turns, keep_first_and_last)"
        )
    for token in request.forced:
        if not 0 <= token < cfg.d_vocab:
            raise errors.RequestError(f"forced token ids must be 0 to {cfg.d_vocab - 1}, got {token}")
    if request.positions is not None and len(request.positions) != len(request.tokens):
        raise errors.RequestError(f"{len(request.tokens)} tokens need as many positions, got {len(request.positions)}")
    for spec in request.interventions:
        model_wiring.check(spec, parts)
        _check_single_row(spec, parts)
    layer_order_of(request)


def _check_single_row(spec: interventions.Intervention, parts: model_wiring.Parts) -> None:
    """An episode is one row, so stored values must not come in several."""
    for name in spec.arrays:
        value = getattr(spec, name)
        site = sites.Site.parse(sites.select(spec.site, parts.site_names)[0])
        own = 3 if site.is_query_key else len(taps.value_shape(site, parts.cfg)) + 1
        if value is not None and value.ndim > own and value.shape[0] != 1:
            raise errors.InterventionError(
                f"{spec.name}.{name} at {spec.site}: an episode is one row, got a batch of {value.shape[0]}; "
                f"expected a leading axis of 1 or none in {tuple(value.shape)}"
            )


def layer_order_of(request: requests.Request) -> interventions.LayerOrder | None:
    """The layer order that holds in this step, if any."""
    orders = [one.spec for one in request.active() if isinstance(one.spec, interventions.LayerOrder)]
    if len(orders) > 1:
        raise errors.InterventionError("only one LayerOrder can hold at a time")
    return orders[0] if orders else None
