"""Figures as sentences have them: the digits that matter, never a power of ten."""

from __future__ import annotations


def digits(value: float, significant: int = 4) -> str:
    """With four: `0.1235`, `12.35`, `1,235`, `123,457`; all digits before the point are kept."""
    whole = abs(value) >= 10 ** (significant - 1) - 0.05
    return f"{value:,.0f}" if whole else f"{value:.{significant}g}"
