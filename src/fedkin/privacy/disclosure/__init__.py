"""What a site withholds: rules with DataSHIELD's names, and the look at the rows they judge.

With an intercept, the sums of products of a site with one row are the row; with few rows they can
be solved for it; a 0/1 column with one positive gives that patient away among any number; and two
fits that differ by one row differ by that row. The rules here act at the site, before anything
leaves. They prevent these known ways; they are no formal guarantee.

Owns `DisclosureRules`, `examine` (what a site's rows would give away), `Guard` (the rules at work
in one run), `Parts` (which groups of rows have left in it) and `Released` (what earlier runs were
about). Knows no model and no engine.
"""

from fedkin.privacy.disclosure.guard import Foresight, Guard
from fedkin.privacy.disclosure.history import Released
from fedkin.privacy.disclosure.look import Look, examine, examine_all
from fedkin.privacy.disclosure.rules import DEFAULT_RULES, DisclosureRules, judge

__all__ = [
    "DEFAULT_RULES",
    "DisclosureRules",
    "Foresight",
    "Guard",
    "Look",
    "Released",
    "examine",
    "examine_all",
    "judge",
]
