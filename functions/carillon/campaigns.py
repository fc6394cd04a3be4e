"""What may be done with a campaign, and what a launch that ended without a word means."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Protocol

from carillon import keys
from carillon.errors import CampaignNotFound, CampaignStateConflict
from carillon.shapes import Campaign, Problem
from carillon.transitions import CampaignState


class Campaigns(Protocol):
    """The port to the campaign records (`carillon.adapters.campaigns.CampaignStore`)."""

    def get(self, campaign_id: str, *, consistent: bool = True) -> Campaign:
        """The campaign as it is now."""
        ...

    def transition(
        self,
        campaign_id: str,
        expected: CampaignState | Collection[CampaignState],
        generation: int,
        to: CampaignState,
        *,
        now: datetime,
        execution: str | None = None,
        **changes: Any,
    ) -> Campaign:
        """Go to state ``to`` if the campaign is as expected."""
        ...

    def by_state(
        self, state: CampaignState, *, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[Campaign], str | None]:
        """A page of the campaigns in ``state``."""
        ...

    def count(self, campaign_id: str, **deltas: int) -> None:
        """Add to the advisory counters."""
        ...

    def count_refused(self, campaign_id: str, generation: int, refused: int) -> None:
        """Add a generation's refused schedules to ``failed``, once."""
        ...


class Groups(Protocol):
    """The port to schedule groups (`carillon.adapters.schedules.Schedules`)."""

    def delete_group(self, group: str) -> None:
        """Delete a group and what is left in it; one that is gone is fine."""
        ...


def expect(campaign: Campaign, states: Collection[CampaignState], generation: int | None = None) -> None:
    """Go on only if the campaign is in one of ``states`` (and at ``generation``).

    Raises:
        CampaignStateConflict: it is not; the message says what it is.
    """
    if campaign.state in states and generation in (None, campaign.generation):
        return
    wanted = " or ".join(sorted(states)) + ("" if generation is None else f" at generation {generation}")
    raise CampaignStateConflict(
        f"campaign {campaign.campaign_id} is {campaign.state} at generation {campaign.generation}, not {wanted}: "
        "someone else decided, and this step changes nothing",
        campaign,
    )


LAUNCH_STOPPED = "LaunchStopped"
"""The campaign's error code after a launch that was stopped or timed out, and so ran none of its own catches."""


def record_launch_end(
    campaigns: Campaigns, groups: Groups, campaign_id: str, execution: str, status: str, now: datetime
) -> bool:
    """A launch (its ARN) ended as ``status`` (FAILED, TIMED_OUT, ABORTED): whatever it had enqueued is broken.

    The campaign becomes ``aborted`` and its schedule group is deleted. True if that was done now; a late event,
    one of an execution that never held the campaign, and one that the machine's own catch has answered
    change nothing.
    """
    try:
        campaign = campaigns.get(campaign_id)
    except CampaignNotFound:
        return False
    if campaign.execution != execution:
        return False
    ours = False
    if campaign.state is CampaignState.ENQUEUED:
        error = Problem(
            code=LAUNCH_STOPPED,
            message=f"the launch ended as {status} before every schedule was made; nothing more will be sent: "
            "resume the campaign to send to those who are left, or cancel it",
        )
        try:
            campaign = campaigns.transition(
                campaign_id,
                CampaignState.ENQUEUED,
                campaign.generation,
                CampaignState.ABORTED,
                now=now,
                execution=execution,
                error=error,
            )
        except CampaignStateConflict:
            return False
        ours = True
    # A second delivery of the event may find the state written and the group still there.
    if campaign.state is CampaignState.ABORTED and campaign.error and campaign.error.code == LAUNCH_STOPPED:
        groups.delete_group(keys.group(campaign_id, campaign.generation))
    return ours
