"""Figures as sentences have them: four digits that matter, never a power of ten."""

from __future__ import annotations


def digits(value: float) -> str:
    """`0.1235`, `12.35`, `1,235`, `123,457`."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:.4g}"
