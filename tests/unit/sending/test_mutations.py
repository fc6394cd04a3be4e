"""Each protection taken away, to see the law break: a test that cannot fail proves nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError

from carillon.adapters import mail
from carillon.adapters.tasks import TaskRows
from carillon.delivery import claims, sending, sequences
from carillon.delivery.claims import Change
from carillon.timing.pace import Grant
from carillon.transitions import TaskStatus
from tests.unit.sending import simulation, test_laws, test_mail, test_pace, test_sending, test_sequences, test_tasks
from tests.unit.sending.examples import task
from tests.unit.sending.fakes import FakeRows
from tests.unit.sending.simulation import Simulation, history, random_fate, rush

HISTORIES = 250


def many_histories(**ports) -> None:
    """Random histories, the same each time."""
    for seed in range(HISTORIES):
        history(random_fate(seed), **ports)


class ClaimsAnything(FakeRows):
    """The claim without its condition."""

    def _apply(self, change) -> None:
        if change.after is TaskStatus.RUNNING:
            key = (change.campaign_id, change.task)
            there = self._world.rows[key]
            self._world.rows[key] = there.model_copy(update={"status": change.after, "claim": _claim(change)})
            self._world.watches_rows = False  # the law of transitions is not what is tested here
        else:
            super()._apply(change)


def _claim(change):
    return claims.Task.model_validate(task(0).model_dump() | change.sets).claim


def test_histories_without_a_mutation_keep_the_laws():
    """The control: the same histories, nothing taken away."""
    many_histories()


def test_without_the_claims_condition_somebody_is_mailed_twice():
    """In the model …"""
    with pytest.raises(AssertionError, match="accepted more than once"):
        many_histories(rows=ClaimsAnything)


def test_without_the_claims_condition_two_claims_win_on_dynamodb(dynamodb):
    """… and where the condition is written."""
    test_tasks.put(dynamodb, task(0))

    def unconditional(**arguments):
        del arguments["ConditionExpression"]
        used = arguments["UpdateExpression"]
        for part in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
            arguments[part] = {name: value for name, value in arguments[part].items() if name in used}
        return dynamodb.update_item(**arguments)

    rows = TaskRows("Tasks", "Suppressions", test_tasks.Client(dynamodb, update_item=unconditional))
    with pytest.raises(AssertionError):
        test_tasks.win_once(rows)


def test_without_a_fresh_claim_token_somebody_is_mailed_twice():
    """A token used before makes another's claim look like our own with its reply lost."""
    with pytest.raises(AssertionError, match="accepted more than once"):
        many_histories(token=lambda simulation: lambda: "always the same")


@pytest.mark.parametrize("answer", ["close", (500, "InternalFailure", "no")], ids=str)
def test_without_one_attempt_alone_ses_is_asked_again(ses, answer, monkeypatch):
    """boto3's own retries send the same e-mail again."""
    left_to_itself = Config(connect_timeout=2, read_timeout=5)
    monkeypatch.setattr(test_mail, "ONCE", left_to_itself)
    with pytest.raises(AssertionError):
        test_mail.test_ses_is_asked_once_whatever_it_answers(ses, answer)


def test_without_the_second_look_a_paused_campaign_sends(monkeypatch):
    """A look that never goes stale."""
    monkeypatch.setattr(sending, "LOOK_IS_FRESH", timedelta(days=1))
    with pytest.raises(AssertionError):
        test_sending.test_the_campaign_is_read_again_after_a_wait_for_pace({"paused": True})


def test_without_the_generation_in_the_claim_an_old_message_sends(monkeypatch):
    """The row was launched again between read and claim."""
    change = claims._change

    def forgetful(*arguments, **options):
        made = change(*arguments, **options)
        kept = {name: value for name, value in made.expected.items() if name != "generation"}
        return claims.Change(made.campaign_id, made.task, made.before, made.after, kept, made.sets, made.removes)

    monkeypatch.setattr(claims, "_change", forgetful)
    with pytest.raises(AssertionError):
        test_sending.test_a_row_that_changes_before_its_claim_is_not_sent_by_the_old_message({"generation": 2})


def test_without_the_generation_check_on_the_row_read_old_messages_cost_pace(monkeypatch):
    """The first of the two generation checks: it keeps old messages from taking capacity."""
    judge = sending.judge

    def blind(campaign, message, row, suppression, now):
        return judge(campaign, message, row.model_copy(update={"generation": message.generation}), suppression, now)

    monkeypatch.setattr(sending, "judge", blind)
    with pytest.raises(AssertionError):
        test_sending.test_rows_and_suppressions_are_read_once_and_terminal_rows_cost_no_pace()


def test_without_the_doubt_about_a_timeout_somebody_is_mailed_twice(monkeypatch):
    """A timeout is no proof that SES has not taken the e-mail."""
    monkeypatch.setattr(mail, "_UNSENT", (*mail._UNSENT, ReadTimeoutError))
    with pytest.raises(AssertionError, match="but accepted"):
        many_histories()
    with pytest.raises(AssertionError):
        test_laws.test_whatever_ses_answers_is_sent_again_only_if_it_was_provably_not_taken()


def test_without_its_wait_a_cancel_is_acknowledged_too_early(monkeypatch):
    """A sender that has read ``dispatching`` is still at it."""
    monkeypatch.setattr(simulation, "CANCEL_WAITS", timedelta(milliseconds=1))
    with pytest.raises(AssertionError, match="accepted after a cancel was acknowledged"):
        many_cancels()


def many_cancels() -> None:
    for seed in range(100):
        with_cancel = Simulation(random_fate(seed))
        try:
            for _ in range(3):
                with_cancel.deliver()
            with_cancel.start(lambda made=with_cancel: simulation.cancel(made))
            with_cancel.run()
        finally:
            with_cancel.end()


def test_with_its_wait_a_cancel_is_acknowledged_in_time():
    """The control."""
    many_cancels()


def test_without_keeping_messages_somebody_is_forgotten(monkeypatch):
    """What is put off and not kept in the queue is nobody's."""
    monkeypatch.setattr(sending._Batch, "_keep", lambda *_: None)
    with pytest.raises(AssertionError, match="acknowledged for no reason"):
        many_histories()


def test_without_waits_in_its_condition_a_release_changes_what_goes_already(monkeypatch):
    """The reconciler had released the next step, at another slot."""
    release = sequences.release

    def bold(row, slot):
        made = release(row, slot)
        kept = {name: value for name, value in made.expected.items() if name != "waits"}
        return Change(made.campaign_id, made.task, made.before, made.after, kept, made.sets, made.removes)

    monkeypatch.setattr(sequences, "release", bold)
    with pytest.raises(AssertionError):
        test_sequences.test_an_outcome_is_never_lost_because_of_the_next_step({"waits": False})


def test_without_waits_in_its_verdict_a_step_goes_out_of_turn(monkeypatch):
    """A message for a step that waits, whoever sent it."""
    judge = sending.judge

    def blind(campaign, message, row, suppression, now):
        return judge(campaign, message, row.model_copy(update={"waits": False}), suppression, now)

    monkeypatch.setattr(sending, "judge", blind)
    with pytest.raises(AssertionError):
        test_sequences.test_a_message_for_a_step_that_still_waits_is_dropped()


class ReleasesFirst(FakeRows):
    """The release, and then the outcome, each for itself."""

    def apply_together(self, changes) -> None:
        for change in reversed(changes):
            self.apply(change)


class ReleasesAlone(FakeRows):
    """The release without the outcome."""

    def apply_together(self, changes) -> None:
        self.apply(changes[-1])


@pytest.mark.parametrize("rows", [ReleasesFirst, ReleasesAlone])
def test_without_their_transaction_a_step_is_released_out_of_turn(rows):
    """Whoever dies in between leaves the next step to go, and nobody knows that this one went."""
    with pytest.raises(AssertionError, match="out of turn"):
        many_histories(rows=rows)


def test_without_losing_missed_slots_the_rate_is_exceeded(monkeypatch):
    """Late e-mails that make up for lost time meet those of others."""
    monkeypatch.setattr(Grant, "over", lambda *_: False)
    monkeypatch.setattr(Grant, "upcoming", _never_late)
    with pytest.raises(AssertionError):
        many_late_senders()
    with pytest.raises(AssertionError, match="in a second"):
        many_rushes()


def many_late_senders() -> None:
    for seed in range(60):
        test_pace.late_senders_keep_the_rate(10, seed)


def many_rushes() -> None:
    for seed in range(80):
        rush(test_laws.unhurried(seed), 3)


def _never_late(grant, now_us):
    return grant.start_us + grant._next * grant.interval_us if grant._next < grant.count else None
