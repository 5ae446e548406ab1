"""What a fit means: odd sites, and (to come) benefit, standard errors, numbers of groups."""

from fedkin.inference.odd_sites import odd_by_likelihood

__all__ = ["odd_by_likelihood"]
