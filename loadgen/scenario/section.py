"""What every part of a scenario is: a frozen mapping of known keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of known keys; anything else is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
