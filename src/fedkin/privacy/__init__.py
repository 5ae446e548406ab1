"""What leaves a site and what that discloses. Owns the ledger; knows no model and no engine."""

from fedkin.privacy.ledger import Ledger

__all__ = ["Ledger"]
