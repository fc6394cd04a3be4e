"""An unsubscription that is stopped anywhere: one row, which comes first, and its event at least once, and the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from carillon.consent.suppressions import Suppression
from carillon.consent.unsubscribing import Unsubscribing, event, sign

from .conftest import ANA, NOW, TASK, Ring

TOKEN = sign(Ring().ring(), "advent", TASK, "news", ANA)
TROUBLES = ("none", "killed before", "never arrived", "reply lost", "killed after", "another post")
CALLS = ("put row", "put event", "mark row")


class Killed(BaseException):
    """The process is gone."""


class Stack:
    """The list and the archive; each call meets the next trouble."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Suppression] = {}
        self.written = 0
        self.events: list[Mapping[str, Any]] = []
        self.calls: list[str] = []
        self._troubles: Iterator[str] = iter(())
        self._posts = 0

    def post(self, troubles: Iterable[str] = ()) -> bool:
        """One POST to the link; whether it was answered as done."""
        self._posts += 1
        self._troubles = iter(troubles)
        try:
            Unsubscribing(Ring(), self, self).act(
                TOKEN, everything=False, one_click=True, now=NOW + timedelta(minutes=self._posts)
            )
        except (Killed, ConnectionError):
            return False
        return True

    def put_first(self, suppression: Suppression) -> Suppression:
        def effect() -> Suppression:
            key = suppression.address_hash, suppression.topic
            if key not in self.rows:
                self.rows[key] = suppression
                self.written += 1
            return self.rows[key]

        return self._call("put row", effect)

    def archive(self, event: Mapping[str, Any]) -> None:
        self._call("put event", lambda: self.events.append(event))

    def mark_archived(self, suppression: Suppression) -> None:
        key = suppression.address_hash, suppression.topic
        self._call("mark row", lambda: self.rows.update({key: replace(self.rows[key], archived=True)}))

    def _call[T](self, name: str, effect: Callable[[], T]) -> T:
        self.calls.append(name)
        trouble = next(self._troubles, "none")
        if trouble == "killed before":
            raise Killed
        if trouble == "never arrived":
            raise ConnectionError
        if trouble == "another post":
            troubles = self._troubles
            assert self.post()
            self._troubles = troubles
        result = effect()
        if trouble == "reply lost":
            raise ConnectionError
        if trouble == "killed after":
            raise Killed
        return result


def test_a_post_makes_these_calls():
    """The row, then its event, then the note that the archive has it; the second time only the row is asked for."""
    stack = Stack()
    assert stack.post()
    assert stack.calls == [*CALLS]
    assert stack.post()
    assert stack.calls == [*CALLS, "put row"]


def every_two_posts(made: Callable[[], Stack] = Stack) -> None:
    """Two troubled posts, the first with trouble at every call and the second at one, then one without any."""
    seconds = [t for t in product(TROUBLES, repeat=3) if t.count("none") >= 2]
    for first, second in product(product(TROUBLES, repeat=3), seconds):
        stack = made()
        for troubles in (first, second):
            answered = stack.post(troubles)
            assert not answered or stack.rows
            assert stack.rows or not stack.events, "an event of what has not happened"
        assert stack.post()
        (row,) = stack.rows.values()
        assert stack.written == 1
        assert row.archived
        assert {e["mail"]["messageId"] for e in stack.events} == {event(row)["mail"]["messageId"]}
        assert all(e == stack.events[0] for e in stack.events)


def test_wherever_it_is_stopped_one_row_and_one_event_come_of_it():
    """Killed before or after any call, unreachable, its reply lost, or overtaken by another click."""
    every_two_posts()


class Forgetful(Stack):
    """Answers with what was asked, whatever row is there."""

    def put_first(self, suppression: Suppression) -> Suppression:
        super().put_first(suppression)
        return suppression


def test_without_the_rows_own_time_one_unsubscription_is_counted_as_several():
    """The mutation: an id made from the click instead of the row."""
    with pytest.raises(AssertionError):
        every_two_posts(Forgetful)
