"""The period form: a mixed-integer program for the exact period of a plan."""

__all__ = [
    "fusion_form",
    "period_form",
    "proof_parts",
    "symmetry",
    "tie_breaking",
]
