"""The evidence: the papers' tables and figures, and what fedkin promises, as commands.

Not part of the installed package: it stands beside it and calls estimators and data sets as any
user would (`fedgrem_unguarded` alone has a method of its own, to compare ours with). Owns
protocols, comparisons with published numbers, and promises. One file a table or figure (or a few
of one shape); files named `_beyond` show nothing of a paper. `study.py` says what goes into one. To
add one: write the file, name its module in `MODULES`, add a test at toy size under
tests/reproduction.
"""

from __future__ import annotations

from importlib import import_module

from reproduction.study import Check, Claim, Estimate, Promise, Results, Size, Study, cells

# In the order of the page. A module holds `STUDIES`, a tuple.
MODULES = (
    "fedgrem_figure_3",
    "fedgrem_steps",
    "fedgrem_real",
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
    "fgpr_convergence",
    "fgpr_fidelity",
    "fgpr_turbofan",
    "mixed_printed",
    "mixed_counts",
    "fedgrem_attacks",
    "fedgrem_unguarded",
    "fedgrem_beyond",
    "fedgrem_sites",
    "fedgrem_tables",
    "fedgrem_few",
    "fedgrem_bent",
    "clustering_beyond",
    "odcl_beyond",
    "odcl_real",
    "never_worse",
    "fmlr_nuisance",
    "fmlr_beyond",
    "fmlr_degrees",
    "fgpr_beyond",
    "mixed_beyond",
    "mixed_real",
    "mixed_classes",
    "best_way",
    "fgpr_curves",
    "fgpr_held_out",
    "answers",
    "liars",
    "intervals",
    "odd_sites_beyond",
)


def catalogue() -> dict[str, Study]:
    """All studies by name, in the order of the page."""
    found = [s for name in MODULES for s in import_module(f"{__name__}.{name}").STUDIES]
    return {study.name: study for study in found}


__all__ = [
    "Check",
    "Claim",
    "Estimate",
    "Promise",
    "Results",
    "Size",
    "Study",
    "catalogue",
    "cells",
]
