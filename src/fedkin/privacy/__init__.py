"""What leaves a site and what that discloses: rules, policy, ledger. Knows no model, no engine."""

from fedkin.privacy.disclosure import DisclosureRules
from fedkin.privacy.ledger import Ledger
from fedkin.privacy.policy import SitePolicy

__all__ = ["DisclosureRules", "Ledger", "SitePolicy"]
