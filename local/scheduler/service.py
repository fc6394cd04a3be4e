"""Scheduler's API: schedules and groups, as AWS keeps them.

What AWS documents is kept to; what it leaves open (contract sheet, marks U) is chosen so that code
relying on it fails here: a past ``at()`` is accepted and never fires, a group being deleted takes nothing.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import heapq
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from local import identity
from local.clock import Clock
from local.contract import contract
from local.identity import Iam
from local.ports import AwsError, Caller
from local.scheduler.expression import due_at
from local.scheduler.faults import Faults
from local.scheduler.firing import Firing
from local.scheduler.target import Action, action_of

DEFAULT_GROUP = "default"
PRINCIPAL = "scheduler.amazonaws.com"
_TOKEN_SECONDS = 24 * 3600
_DEFAULT_RETRIES = {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86_400}


@dataclass(slots=True)
class Schedule:
    """One schedule as it was created or last replaced."""

    arn: str
    params: dict[str, Any]
    action: Action
    due: float
    created: float
    modified: float
    group: str

    @property
    def name(self) -> str:
        """Its name, unique in its group."""
        name: str = self.params["Name"]
        return name


@dataclass(slots=True)
class Group:
    """A schedule group; ``ordered`` is its names in order, made when they are next listed."""

    name: str
    arn: str
    created: float
    modified: float
    state: str = "ACTIVE"
    tags: dict[str, str] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    ordered: list[str] | None = None


@dataclass(slots=True)
class _Remembered:
    fingerprint: bytes
    answer: dict[str, Any]
    until: float


class Scheduler:
    """EventBridge Scheduler for one account and Region.

    Attributes:
        faults: switches for tests.
        schedule_quota, group_quota: beyond them ServiceQuotaExceededException.
        deletion_seconds: how long a group stays DELETING, on the clock; its due schedules still fire.
    """

    name = "scheduler"

    def __init__(self, clock: Clock, caller: Caller, iam: Iam, account_id: str, region: str) -> None:
        self.faults = Faults()
        self.schedule_quota = 10_000_000
        self.group_quota = 500
        self.deletion_seconds = 5.0
        self._clock = clock
        self._iam = iam
        self._prefix = f"arn:aws:scheduler:{region}:{account_id}"
        self._contract = contract("scheduler")
        self._lock = threading.RLock()
        self._groups: dict[str, Group] = {}
        self._count = 0
        self._tokens: dict[tuple[str, str], _Remembered] = {}
        self._expiries: list[tuple[float, tuple[str, str]]] = []
        self._firing = Firing(clock, caller, self._prefix, account_id, region, self._completed)
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "CreateSchedule": self._create,
            "UpdateSchedule": self._update,
            "GetSchedule": self._get,
            "DeleteSchedule": self._delete,
            "ListSchedules": self._list,
            "CreateScheduleGroup": self._create_group,
            "GetScheduleGroup": self._get_group,
            "DeleteScheduleGroup": self._delete_group,
            "ListScheduleGroups": self._list_groups,
            "TagResource": self._tag,
            "UntagResource": self._untag,
            "ListTagsForResource": self._tags,
        }
        self.reset()

    def handle(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one operation; see ``Service.handle``."""
        self._contract.operation(operation).validate(params)
        self.faults.check(operation, str(params.get("Name", "")))
        return self._operations[operation](params)

    def reset(self) -> None:
        """An account without schedules, its default group present."""
        with self._lock:
            self._firing.reset()
            now = self._clock.time()
            self._groups = {DEFAULT_GROUP: self._new_group(DEFAULT_GROUP, now)}
            self._count = 0
            self._tokens.clear()
            self._expiries.clear()
        self.faults.set()

    def close(self) -> None:
        """Stop firing."""
        self._firing.close()

    # Schedules

    def _create(self, params: Mapping[str, Any]) -> dict[str, Any]:
        action, due = self._checked(params)
        name, group_name = params["Name"], params.get("GroupName") or DEFAULT_GROUP
        with self._lock:
            if (answer := self._remembered("CreateSchedule", params)) is not None:
                return answer
            group = self._group(group_name)
            if group.state == "DELETING":
                raise self._error("ConflictException", f"Schedule group {group_name} is being deleted.")
            if name in group.schedules:
                raise self._error("ConflictException", f"Schedule {name} already exists.")
            if self._count >= self.schedule_quota:
                raise self._error("ServiceQuotaExceededException", "You have reached the quota of schedules.")
            now = self._clock.time()
            arn = f"{self._prefix}:schedule/{group_name}/{name}"
            schedule = Schedule(arn, _kept(params), action, due, now, now, group_name)
            group.schedules[name] = schedule
            group.ordered = None
            self._count += 1
            self._firing.plan(schedule)
            return self._remember("CreateSchedule", params, {"ScheduleArn": arn})

    def _update(self, params: Mapping[str, Any]) -> dict[str, Any]:
        action, due = self._checked(params)
        with self._lock:
            if (answer := self._remembered("UpdateSchedule", params)) is not None:
                return answer
            group, before = self._schedule(params)
            if group.state == "DELETING":
                raise self._error("ConflictException", f"Schedule group {group.name} is being deleted.")
            # A full replace: what is left out goes back to its default (API reference of UpdateSchedule).
            now = self._clock.time()
            after = Schedule(before.arn, _kept(params), action, due, before.created, now, group.name)
            group.schedules[after.name] = after
            self._firing.plan(after)
            return self._remember("UpdateSchedule", params, {"ScheduleArn": after.arn})

    def _get(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            group, schedule = self._schedule(params)
            return {
                **_with_defaults(schedule.params),
                "Arn": schedule.arn,
                "GroupName": group.name,
                "CreationDate": _date(schedule.created),
                "LastModificationDate": _date(schedule.modified),
            }

    def _delete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if (answer := self._remembered("DeleteSchedule", params)) is not None:
                return answer
            group, schedule = self._schedule(params)
            self._remove(group, schedule)
            return self._remember("DeleteSchedule", params, {})

    def _list(self, params: Mapping[str, Any]) -> dict[str, Any]:
        prefix, state = params.get("NamePrefix", ""), params.get("State")
        size = params.get("MaxResults", 100)
        with self._lock:
            if "GroupName" in params:
                groups = [self._group(params["GroupName"])]
            else:
                groups = [self._groups[name] for name in sorted(self._groups)]
            after = self._read_token(params.get("NextToken"))
            found: list[dict[str, Any]] = []
            for schedule in self._ordered(groups, prefix, after):
                shown = schedule.params.get("State", "ENABLED")
                if state is not None and state != shown:
                    continue
                if len(found) == size:
                    last = found[-1]
                    return {"Schedules": found, "NextToken": _token(last["GroupName"], last["Name"])}
                found.append(
                    {
                        "Arn": schedule.arn,
                        "Name": schedule.name,
                        "GroupName": schedule.group,
                        "State": shown,
                        "Target": {"Arn": schedule.params["Target"]["Arn"]},
                        "CreationDate": _date(schedule.created),
                        "LastModificationDate": _date(schedule.modified),
                    }
                )
        return {"Schedules": found}

    def _ordered(self, groups: list[Group], prefix: str, after: tuple[str, str]) -> Iterator[Schedule]:
        for group in groups:
            if group.name < after[0]:
                continue
            if group.ordered is None:
                group.ordered = sorted(group.schedules)
            names = group.ordered
            start = bisect.bisect_left(names, prefix)
            if group.name == after[0]:
                start = max(start, bisect.bisect_right(names, after[1]))
            for name in names[start:]:
                if not name.startswith(prefix):
                    break
                yield group.schedules[name]

    def _checked(self, params: Mapping[str, Any]) -> tuple[Action, float]:
        window = params["FlexibleTimeWindow"]
        if (window["Mode"] == "FLEXIBLE") != ("MaximumWindowInMinutes" in window):
            raise self._error(
                "ValidationException",
                "MaximumWindowInMinutes is for FlexibleTimeWindow mode FLEXIBLE, and needed there.",
            )
        due = due_at(params["ScheduleExpression"], params.get("ScheduleExpressionTimezone", "UTC"))
        action = action_of(params["Target"])
        role = params["Target"]["RoleArn"]
        if (asking := identity.caller.get()) is not None:
            self._iam.allow(asking, "iam:PassRole", role, {"iam:PassedToService": PRINCIPAL})
        group = params.get("GroupName") or DEFAULT_GROUP
        try:
            self._iam.assume(role, PRINCIPAL, f"{self._prefix}:schedule-group/{group}")
        except AwsError as refused:
            raise self._error(
                "ValidationException",
                "The execution role you provide must allow AWS EventBridge Scheduler to assume the role.",
            ) from refused
        return action, due

    def _schedule(self, params: Mapping[str, Any]) -> tuple[Group, Schedule]:
        group = self._groups.get(params.get("GroupName") or DEFAULT_GROUP)
        schedule = group.schedules.get(params["Name"]) if group is not None else None
        if group is None or schedule is None:
            raise self._error("ResourceNotFoundException", f"Schedule {params['Name']} does not exist.")
        return group, schedule

    def _remove(self, group: Group, schedule: Schedule) -> None:
        del group.schedules[schedule.name]
        group.ordered = None
        self._count -= 1
        self._firing.forget(schedule)

    def _completed(self, schedule: Schedule) -> None:
        """A one-time schedule has been invoked for the last time."""
        if schedule.params.get("ActionAfterCompletion") != "DELETE":
            return
        with self._lock:
            group = self._groups.get(schedule.group)
            if group is not None and group.schedules.get(schedule.name) is schedule:
                self._remove(group, schedule)

    # Groups

    def _create_group(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name = params["Name"]
        with self._lock:
            if (answer := self._remembered("CreateScheduleGroup", params)) is not None:
                return answer
            if (group := self._groups.get(name)) is not None:
                what = "is being deleted" if group.state == "DELETING" else "already exists"
                raise self._error("ConflictException", f"Schedule group {name} {what}.")
            if len(self._groups) >= self.group_quota:
                raise self._error("ServiceQuotaExceededException", "You have reached the quota of schedule groups.")
            group = self._new_group(name, self._clock.time())
            group.tags = {tag["Key"]: tag["Value"] for tag in params.get("Tags", ())}
            self._groups[name] = group
            return self._remember("CreateScheduleGroup", params, {"ScheduleGroupArn": group.arn})

    def _get_group(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            return _summary(self._group(params["Name"]))

    def _delete_group(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name = params["Name"]
        with self._lock:
            if (answer := self._remembered("DeleteScheduleGroup", params)) is not None:
                return answer
            if name == DEFAULT_GROUP:
                raise self._error("ValidationException", "The default schedule group cannot be deleted.")
            group = self._group(name)
            if group.state == "DELETING":
                raise self._error("ConflictException", f"Schedule group {name} is being deleted.")
            group.state = "DELETING"
            group.modified = self._clock.time()
            self._firing.at(group.modified + self.deletion_seconds, lambda: self._drop(group))
            return self._remember("DeleteScheduleGroup", params, {})

    def _drop(self, group: Group) -> None:
        with self._lock:
            if self._groups.get(group.name) is group:
                for schedule in list(group.schedules.values()):
                    self._remove(group, schedule)
                del self._groups[group.name]

    def _list_groups(self, params: Mapping[str, Any]) -> dict[str, Any]:
        prefix, size = params.get("NamePrefix", ""), params.get("MaxResults", 100)
        with self._lock:
            after, _ = self._read_token(params.get("NextToken"))
            names = sorted(name for name in self._groups if name.startswith(prefix) and name > after)
            page = [_summary(self._groups[name]) for name in names[:size]]
        return {"ScheduleGroups": page} | ({"NextToken": _token(names[size - 1], "")} if len(names) > size else {})

    def _group(self, name: str) -> Group:
        if (group := self._groups.get(name)) is None:
            raise self._error("ResourceNotFoundException", f"Schedule group {name} does not exist.")
        return group

    def _new_group(self, name: str, now: float) -> Group:
        return Group(name, f"{self._prefix}:schedule-group/{name}", now, now)

    # Tags

    def _tag(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._tagged(params).tags.update({tag["Key"]: tag["Value"] for tag in params["Tags"]})
        return {}

    def _untag(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            tags = self._tagged(params).tags
            for key in params["TagKeys"]:
                tags.pop(key, None)
        return {}

    def _tags(self, params: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            tags = self._tagged(params).tags
            return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _tagged(self, params: Mapping[str, Any]) -> Group:
        arn = params["ResourceArn"]
        group = self._group(arn.rpartition("/")[2])
        if group.arn != arn:
            raise self._error("ResourceNotFoundException", f"Resource {arn} does not exist.")
        return group

    # Idempotency

    def _remembered(self, operation: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to an earlier request with this ClientToken, which stands even if the schedule has
        gone since."""
        now = self._clock.time()
        while self._expiries and self._expiries[0][0] < now:
            self._tokens.pop(heapq.heappop(self._expiries)[1], None)
        if (client_token := params.get("ClientToken")) is None:
            return None
        if (known := self._tokens.get((operation, client_token))) is None:
            return None
        if known.fingerprint != _fingerprint(params):
            raise self._error("ConflictException", "This ClientToken was used with other parameters.")
        return known.answer

    def _remember(self, operation: str, params: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if (client_token := params.get("ClientToken")) is not None:
            until = self._clock.time() + _TOKEN_SECONDS
            self._tokens[operation, client_token] = _Remembered(_fingerprint(params), answer, until)
            heapq.heappush(self._expiries, (until, (operation, client_token)))
        return answer

    def _read_token(self, token: str | None) -> tuple[str, str]:
        if token is None:
            return "", ""
        try:
            group, name = json.loads(base64.urlsafe_b64decode(token))
            return str(group), str(name)
        except (ValueError, TypeError) as reason:
            raise self._error("ValidationException", "Invalid NextToken.") from reason

    def _error(self, code: str, message: str) -> AwsError:
        return self._contract.error(code, message)


def _kept(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "ClientToken" and value is not None}


def _with_defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    target = {**params["Target"]}
    target["RetryPolicy"] = _DEFAULT_RETRIES | target.get("RetryPolicy", {})
    defaults = {"State": "ENABLED", "ScheduleExpressionTimezone": "UTC", "ActionAfterCompletion": "NONE"}
    return {**defaults, **params, "Target": target}


def _summary(group: Group) -> dict[str, Any]:
    return {
        "Arn": group.arn,
        "Name": group.name,
        "State": group.state,
        "CreationDate": _date(group.created),
        "LastModificationDate": _date(group.modified),
    }


def _fingerprint(params: Mapping[str, Any]) -> bytes:
    document = json.dumps(params, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.blake2b(document.encode(), digest_size=16).digest()


def _date(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def _token(group: str, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([group, name]).encode()).decode()
