"""Estimates of how long the study takes, from the speed of one short batch.

Costs that batch. The answer is an upper one: responses are counted at full length, and episodes as far as they may go.
"""

import time

from sonde.models import model as models_model
from sonde.studies.critical_steps import settings as study_settings

_TOKENS, _PROMPT = 6, 48


def seconds(
    model: models_model.Model, settings: study_settings.CriticalStepsSettings, *, steps: int, new_tokens: int
) -> dict[str, float]:
    """Seconds at most, by stage.

    Args:
        model: The model.
        settings: The study's.
        steps: Steps of an episode.
        new_tokens: Tokens of a response.
    """
    decode, encode = _speed(model, settings.wave)
    waves = -(-settings.episodes // settings.wave)
    decisive = max(len(settings.steps or range(steps - 1)), 1)
    cells = 2 * (settings.cells or decisive)
    screened = -(-(len(settings.layers) + 1) // settings.wave) * steps * (settings.horizon + 1)
    rows = decisive * settings.rollouts + min(cells, decisive * len(settings.layers)) * settings.rollouts
    return {
        "play": waves * steps * new_tokens * decode,
        "screen": settings.episodes * screened * new_tokens * encode,
        "rollouts": settings.episodes * -(-rows // settings.wave) * (steps + 1) / 2 * new_tokens * decode,
        "heads": settings.episodes * settings.heads * (settings.horizon + 1) * new_tokens * encode,
    }


def _speed(model: models_model.Model, rows: int) -> tuple[float, float]:
    """Seconds per token of a whole batch: generated, and encoded."""
    text = model.to_tokens("a")[0].tolist()
    text += text[-1:] * _PROMPT
    prompts = [text[:2]] * rows
    model.generate(prompts, max_new_tokens=1)  # the first batch of all is slow
    start = time.monotonic()
    model.generate(prompts, max_new_tokens=_TOKENS, min_new_tokens=_TOKENS)
    middle = time.monotonic()
    model.generate([text[:_PROMPT]] * rows, max_new_tokens=1)
    end = time.monotonic()
    model.pool.entries.clear()
    return (middle - start) / _TOKENS, (end - middle) / _PROMPT
