"""CloudFormation's ``AWS::Scheduler::*``, made through our Scheduler, so that a template it would refuse
on AWS rolls the stack back here too."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from local.contract import contract
from local.ports import AwsError

if TYPE_CHECKING:
    from local.scheduler.service import Scheduler

type Handlers = dict[str, Callable[..., Any]]
type Made = tuple[str, dict[str, Any]]


def schedules(scheduler: Scheduler) -> Handlers:
    """Handlers of ``AWS::Scheduler::Schedule``: Ref is the name, ``Arn`` an attribute."""

    def create(logical_id: str, props: Mapping[str, Any], stack_name: str) -> Made:
        name = props.get("Name") or f"{stack_name}-{logical_id}-{uuid.uuid4().hex[:12].upper()}"[-64:]
        params = _typed("CreateSchedule", {**props, "Name": name})
        return name, {"Arn": scheduler.handle("CreateSchedule", params)["ScheduleArn"]}

    def update(physical_id: str, old_props: Mapping[str, Any], new_props: Mapping[str, Any], stack_name: str) -> Made:
        if new_props.get("Name", physical_id) != physical_id:
            # Another physical id: CloudFormation deletes this one afterwards.
            return create(physical_id, new_props, stack_name)
        if new_props.get("GroupName") != old_props.get("GroupName"):
            made = create(physical_id, {**new_props, "Name": physical_id}, stack_name)
            delete(physical_id, old_props)
            return made
        params = _typed("UpdateSchedule", {**new_props, "Name": physical_id})
        return physical_id, {"Arn": scheduler.handle("UpdateSchedule", params)["ScheduleArn"]}

    def delete(physical_id: str, props: Mapping[str, Any]) -> None:
        params = {"Name": physical_id, "GroupName": props.get("GroupName", "default")}
        _gone_already(lambda: scheduler.handle("DeleteSchedule", params))

    return {"create": create, "update": update, "delete": delete}


def schedule_groups(scheduler: Scheduler) -> Handlers:
    """Handlers of ``AWS::Scheduler::ScheduleGroup``: Ref is the name, ``Arn`` an attribute."""

    def create(logical_id: str, props: Mapping[str, Any], stack_name: str) -> Made:
        name = props.get("Name") or f"{stack_name}-{logical_id}-{uuid.uuid4().hex[:12].upper()}"[-64:]
        answer = scheduler.handle("CreateScheduleGroup", {"Name": name, "Tags": props.get("Tags", [])})
        return name, {"Arn": answer["ScheduleGroupArn"]}

    def update(physical_id: str, old_props: Mapping[str, Any], new_props: Mapping[str, Any], stack_name: str) -> Made:
        if new_props.get("Name", physical_id) != old_props.get("Name", physical_id):
            return create(physical_id, new_props, stack_name)
        arn = scheduler.handle("GetScheduleGroup", {"Name": physical_id})["Arn"]
        stale = {tag["Key"] for tag in old_props.get("Tags", [])} - {tag["Key"] for tag in new_props.get("Tags", [])}
        scheduler.handle("UntagResource", {"ResourceArn": arn, "TagKeys": sorted(stale)})
        scheduler.handle("TagResource", {"ResourceArn": arn, "Tags": new_props.get("Tags", [])})
        return physical_id, {"Arn": arn}

    def delete(physical_id: str, props: Mapping[str, Any]) -> None:
        _gone_already(lambda: scheduler.handle("DeleteScheduleGroup", {"Name": physical_id}))

    return {"create": create, "update": update, "delete": delete}


def _typed(operation: str, props: Mapping[str, Any]) -> dict[str, Any]:
    """CloudFormation hands numbers over as text where a parameter or a function made them."""

    def typed(shape: Any, value: Any) -> Any:
        if shape.type_name == "structure" and isinstance(value, Mapping):
            return {
                name: typed(shape.members[name], item) if name in shape.members else item
                for name, item in value.items()
            }
        if shape.type_name == "integer" and isinstance(value, str) and value.isdecimal():
            return int(value)
        return value

    members: dict[str, Any] = typed(contract("scheduler").operation(operation).model.input_shape, props)
    return members


def _gone_already(delete: Callable[[], Any]) -> None:
    try:
        delete()
    except AwsError as refused:
        if refused.code != "ResourceNotFoundException":
            raise
