"""The schemas of this study's documents: what they must hold, so that the next stage can use them.

Checked when a stage is read; `results.json` and what the page alone shows are checked where they are used. Costs a walk
over the document.
"""

from typing import Annotated, Any

import pydantic

from sonde.store import schemas
from sonde.studies.twenty_questions import claims

P = Annotated[schemas.Number, pydantic.Field(ge=0)]


class _Collected(pydantic.BaseModel):
    temperature: schemas.Number
    pilots: list[schemas.Data]
    games: schemas.Count
    failed: schemas.Count
    messages: schemas.Count
    left_out: schemas.Count
    invalid_rate: schemas.Data
    by_step: list[schemas.Data]


class _Nested(pydantic.BaseModel):
    claim_p: P
    why: schemas.Text


class _Moments(pydantic.BaseModel):
    before: _Nested
    after: _Nested
    step: schemas.Data


class _Probed(pydantic.BaseModel):
    sweep: schemas.Data
    nested: _Moments
    layer: schemas.Count


class _Effect(pydantic.BaseModel):
    value: schemas.Number
    low: schemas.Number
    high: schemas.Number


class _Compared(pydantic.BaseModel):
    effect: _Effect
    p: P
    smallest: schemas.Number | None
    pairs: schemas.Count


class _Test(pydantic.BaseModel):
    condition: schemas.Text
    unsteered: _Compared
    controls: _Compared


class _Steered(pydantic.BaseModel):
    layer: schemas.Count
    norms: schemas.Data
    typical_norm: schemas.Number
    left_out: schemas.Data
    conditions: list[schemas.Data]
    means: schemas.Data
    versus: schemas.Data
    tests: list[_Test]
    claim_p: P


class _Changed(pydantic.BaseModel):
    layer: schemas.Count
    claim_p: P
    skipped: schemas.Text | None = None
    change_p: dict[str, P | None] = {}
    sentences: list[schemas.Text] = []

    @pydantic.model_validator(mode="after")
    def _told(self) -> "_Changed":
        if self.skipped is None and not self.sentences:
            raise ValueError("it neither was skipped nor says anything")
        return self


class _Rows(pydantic.BaseModel):
    labels: Annotated[list[pydantic.StrictBool], pydantic.Field(fail_fast=True)]
    episodes: Annotated[list[schemas.Count], pydantic.Field(fail_fast=True)]
    steps: Annotated[list[schemas.Count], pydantic.Field(fail_fast=True)]
    texts: Annotated[list[schemas.Text], pydantic.Field(fail_fast=True)]
    before: Annotated[list[schemas.Text], pydantic.Field(fail_fast=True)]
    left_out: schemas.Count
    features: schemas.Count | None = None


_Claims: Any = list[schemas.strict(claims.Claim)]
COLLECTED = schemas.register("stage of games", _Collected)
PROBED = schemas.register("stage of probes", _Probed)
STEERED = schemas.register("stage of steering", _Steered)
CHANGED = schemas.register("stage of the evolution", _Changed)
RESULTS = schemas.register("results of the study", pydantic.create_model("Results", claims=(_Claims, ...)))
ROWS = schemas.register("table of messages", _Rows)
