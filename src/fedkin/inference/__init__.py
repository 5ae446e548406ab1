"""What a fit means: which sites it does not describe, and how many rows a guarantee needs."""

from fedkin.inference.odd_sites import odd_by_likelihood, odd_by_misfit
from fedkin.inference.sample_sizes import RowsNeeded, local_error_constant, rows_needed

__all__ = [
    "RowsNeeded",
    "local_error_constant",
    "odd_by_likelihood",
    "odd_by_misfit",
    "rows_needed",
]
