"""What a fit means, and what a site can do about it: the answers people ask for.

`benefit` says whether joining helps each site; `checks` what deserves a look before any fit, with
codes; `meta_analysis` what sites' estimates say together; `estimates` how sure a fit's coefficients
are; `conformalize` gives intervals that hold whatever the model; `plan` what to expect before any
data move; `odd_sites` which sites do not go with the others; `how_many` how many groups there are;
`rows_needed` how many rows a guarantee needs.
"""

from fedkin.checks import CheckWarning, Findings, checks
from fedkin.inference.benefit import Benefit, benefit
from fedkin.inference.conformal import Conformal, conformalize
from fedkin.inference.estimates import estimates
from fedkin.inference.how_many import HowMany, how_many
from fedkin.inference.meta import MetaAnalysis, meta_analysis, site_estimates
from fedkin.inference.misfit_rules import odd_by_likelihood, odd_by_misfit
from fedkin.inference.odd_sites import OddSites, odd_sites
from fedkin.inference.planning import Plan, plan
from fedkin.inference.sample_sizes import RowsNeeded, local_error_constant, rows_needed

__all__ = [
    "Benefit",
    "CheckWarning",
    "Conformal",
    "Findings",
    "HowMany",
    "MetaAnalysis",
    "OddSites",
    "Plan",
    "RowsNeeded",
    "benefit",
    "checks",
    "conformalize",
    "estimates",
    "how_many",
    "local_error_constant",
    "meta_analysis",
    "odd_by_likelihood",
    "odd_by_misfit",
    "odd_sites",
    "plan",
    "rows_needed",
    "site_estimates",
]
