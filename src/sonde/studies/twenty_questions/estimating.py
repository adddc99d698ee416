"""How long will it take? From the speed of one short batch of this model on this machine.

Costs that batch. The answer is a rough one: games end early, and answers are shorter than they may be.
"""

import time

from sonde.models import model as models_model
from sonde.studies.twenty_questions import settings as study_settings

#: Of an answer, in tokens; and of the words that come back.
ANSWER, REPLY = 10, 16
#: Seconds per cell of the probes' map: all steps, one step.
CELL = (1.0, 0.15)


def seconds(model: models_model.Model, settings: study_settings.Settings) -> dict[str, float]:
    """Seconds by stage."""
    decode, encode = _speed(model, settings.wave)
    wave = settings.steps * (ANSWER * decode + REPLY * encode)
    pilots = len(settings.temperatures) if len(settings.temperatures) > 1 else 0
    conditions = 1 + 2 * len(settings.strengths) + 2 + 2 * (settings.random + 2)
    games = {
        "collect": -(-settings.episodes // settings.wave) + pilots * -(-settings.pilot // settings.wave),
        "steer": -(-settings.steer_episodes * conditions // settings.wave),
    }
    cells = 4 * len(settings.layers)
    return {
        "collect": games["collect"] * wave,
        "probe": cells * (CELL[0] + settings.steps * CELL[1]),
        "steer": games["steer"] * wave,
        "evolution": 5.0,
        "report": 10.0,
    }


def _speed(model: models_model.Model, rows: int) -> tuple[float, float]:
    """Seconds per token of a whole batch: generated, and encoded."""
    text = model.to_tokens("a")[0].tolist()
    text += text[-1:] * 32
    with model.packed():
        model.generate([text[:2]] * rows, max_new_tokens=1)  # the first batch of all is slow
        start = time.monotonic()
        model.generate([text[:2]] * rows, max_new_tokens=6, min_new_tokens=6)
        middle = time.monotonic()
        model.generate([text[:32]] * rows, max_new_tokens=1)
        end = time.monotonic()
    model.pool.entries.clear()
    return (middle - start) / 6, (end - middle) / 32
