"""The papers' tables and figures as commands: configuration in, table, figure and page out.

Owns protocols and comparisons with published numbers. Refuses to hold statistics of its own: a
study calls estimators and data sets as any user would (`fedgrem_unguarded` alone has a method of
its own, to compare ours with). One file a table or figure (or a few of one shape); `study.py` says
what goes into it. To add one: write the file, name its module in `MODULES`, add a test at toy size
under tests/reproduction.
"""

from __future__ import annotations

from importlib import import_module

from reproduction.study import Claim, Estimate, Results, Size, Study, cells

# In the order of the page. A module holds `STUDIES`, a tuple.
MODULES = (
    "fedgrem_figure_3",
    "fedgrem_steps",
    "fedgrem_real",
    "fedgrem_attacks",
    "fedgrem_unguarded",
    "fedgrem_bounds",
    "odcl_conditions",
    "odcl_curves",
    "odcl_images",
    "odcl_ifca",
    "odcl_bounds",
    "fmlr_errors",
    "fmlr_contraction",
    "fmlr_regimes",
    "fmlr_empty",
    "fmlr_radius",
    "fmlr_nuisance",
    "fgpr_convergence",
    "fgpr_fidelity",
    "fgpr_turbofan",
)


def catalogue() -> dict[str, Study]:
    """All studies by name, in the order of the page."""
    found = [s for name in MODULES for s in import_module(f"{__name__}.{name}").STUDIES]
    return {study.name: study for study in found}


__all__ = ["Claim", "Estimate", "Results", "Size", "Study", "catalogue", "cells"]
