"""The names of the ways in which arrivals are spread; needs nothing, so that a scenario is checked without numpy."""

from typing import Literal

Pattern = Literal["poisson", "constant", "gamma"]
