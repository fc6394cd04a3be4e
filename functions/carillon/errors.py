"""Errors that a person or a state machine acts on: the class name is what `Catch` and the API see.

Every message names the cause and the fix, and never an e-mail address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carillon.shapes import Campaign


class CarillonError(Exception):
    """A refusal that Carillon explains. ``code`` is the class name: it goes into the campaign's ``error``."""

    @property
    def code(self) -> str:
        """The name that state machines catch and the campaign record shows."""
        return type(self).__name__


class CampaignNotFound(CarillonError):
    """No such campaign."""


class CampaignStateConflict(CarillonError):
    """The campaign's state or generation is not what this step expects: someone else decided.

    ``found`` is the campaign as it was when the condition failed.
    """

    def __init__(self, message: str, found: Campaign | None = None) -> None:
        super().__init__(message)
        self.found = found


class ListRejected(CarillonError):
    """The list cannot be used at all; nothing was enrolled."""

    @property
    def reason(self) -> str:
        """The name that the message begins with, of a fixed vocabulary (`carillon.recipients.reading.refusal`)."""
        return str(self).partition(":")[0]


class TemplateRejected(CarillonError):
    """A template cannot be used: missing, unparsable, or a placeholder that no column fills."""


class IdentityNotVerified(CarillonError):
    """SES would refuse the From address."""


class PlanRefused(CarillonError):
    """The spec gives no slot to some recipient (for example a pace of nothing), or a zone is unknown."""


class LedgerConflict(CarillonError):
    """Other campaigns have taken capacity in between; planned anew, nothing is taken twice."""


class FanOutBroken(CarillonError):
    """Schedules could not be created, beyond what single refusals explain."""


class SweepUnfinished(CarillonError):
    """A sweep of rows ran out of time; the same call again goes on with what is left."""


class ReconcileUnfinished(CarillonError):
    """Some campaigns could not be reconciled; all others were, and the next pass tries them again."""


class InvalidCursor(CarillonError):
    """A cursor that this listing never gave."""

    def __init__(self) -> None:
        super().__init__("this cursor is not one that this listing gave: leave it out to start at the beginning")
