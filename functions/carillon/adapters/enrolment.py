"""The rows of a whole campaign in the Tasks table: enrolled in batches, walked and swept shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from carillon import keys
from carillon.adapters import aws, clock, statements
from carillon.adapters.items import from_item, to_item, value
from carillon.adapters.statements import ALREADY_THERE, NOT_AS_EXPECTED, code_of
from carillon.shapes import Problem, Task
from carillon.transitions import TaskStatus

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import BatchStatementRequestTypeDef

_COUNTING = 8
"""Shards counted side by side: each is a read of its own partition."""


class CampaignRows:
    """Task rows of campaigns."""

    def __init__(
        self, table: str, client: DynamoDBClient | None = None, sleep: Callable[[float], None] = clock.sleep
    ) -> None:
        self._table = table
        self._client = client or aws.dynamodb()
        self._sleep = sleep

    def enrol(self, wanted: Sequence[Task]) -> list[Task]:
        """Put each row if there is none, or raise a Pending row of an older generation to the wanted one.

        Returns, in the same order, what the table holds then. Doing it again changes nothing.

        Raises:
            TimeoutError: DynamoDB throttled some rows for too long; those written stay.
        """
        there = list(wanted)
        outcomes = self._run([self._insert(task) for task in wanted])
        known = [n for n, outcome in enumerate(outcomes) if code_of(outcome) == ALREADY_THERE]
        raised = self._run([self._raise(wanted[n]) for n in known])
        for n, outcome in zip(known, raised, strict=True):
            if code_of(outcome):
                there[n] = Task.model_validate(from_item(outcome["Error"]["Item"]))
        return there

    def cancel(self, tasks: Sequence[Task], error: Problem | None = None) -> int:
        """Cancel those of ``tasks`` that are Pending still, with the ``error`` that says why; how many that was."""
        outcomes = self._run([self._cancel(task, error) for task in tasks])
        return sum(1 for outcome in outcomes if not code_of(outcome))

    def renew(self, task: Task, generation: int, slot: int, client_token: str) -> bool:
        """Plan a Pending task anew, and let it wait no more; False when it is not as ``task`` says any more."""
        statement = self._update(
            task,
            {"generation": generation, "slot": slot, "client_token": client_token, "waits": False},
            '"status" = ? AND "client_token" = ?',
            TaskStatus.PENDING,
            task.client_token,
        )
        return not code_of(self._run([statement])[0])

    def shard(self, campaign_id: str, number: int, *statuses: TaskStatus) -> Iterator[list[Task]]:
        """Pages of a shard's rows, consistent, in the order of their keys; only ``statuses``, if any are given."""
        after: str | None = None
        while True:
            tasks, after = self.page(campaign_id, number, statuses, after=after)
            yield tasks
            if after is None:
                return

    def page(
        self,
        campaign_id: str,
        number: int,
        statuses: Sequence[TaskStatus] = (),
        *,
        after: str | None = None,
        limit: int = 0,
    ) -> tuple[list[Task], str | None]:
        """One page of a shard: its rows, and the task after which the next one starts (None: that was all).

        ``limit`` bounds the rows looked at, before ``statuses`` are picked; 0: as many as 1 MB holds.
        """
        options: dict[str, Any] = {"Limit": limit} if limit else {}
        if statuses:
            wanted = {f":s{n}": value(status) for n, status in enumerate(statuses)}
            options["FilterExpression"] = f"#status IN ({', '.join(wanted)})"
            options["ExpressionAttributeNames"] = {"#status": "status"}
            options["ExpressionAttributeValues"] = wanted
        answer = self._query(campaign_id, number, after, options)
        last = answer.get("LastEvaluatedKey")
        tasks = [Task.model_validate(from_item(item)) for item in answer["Items"]]
        return tasks, None if last is None else last["sk"]["S"].replace("#", "-")

    def find(self, campaign_id: str, task: str) -> Task | None:
        """One row, consistently; None: there is none."""
        key = to_item(keys.task_key(campaign_id, task))
        item = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True).get("Item")
        return None if item is None else Task.model_validate(from_item(item))

    def counts(self, campaign_id: str) -> Counter[TaskStatus]:
        """How many rows there are in each status, zeros included: every row is read, eight shards at a time."""
        total = Counter(dict.fromkeys(TaskStatus, 0))
        with ThreadPoolExecutor(_COUNTING) as pool:
            for found in pool.map(lambda number: self._count(campaign_id, number), range(keys.SHARDS)):
                total.update(found)
        return total

    def _count(self, campaign_id: str, number: int) -> Counter[TaskStatus]:
        found: Counter[TaskStatus] = Counter()
        options = {"ProjectionExpression": "#status", "ExpressionAttributeNames": {"#status": "status"}}
        last: str | None = None
        while True:
            answer = self._query(campaign_id, number, last, options)
            found.update(TaskStatus(item["status"]["S"]) for item in answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return found
            last = answer["LastEvaluatedKey"]["sk"]["S"].replace("#", "-")

    def _query(self, campaign_id: str, number: int, after: str | None, options: dict[str, Any]) -> Any:
        values = {":pk": value(keys.partition(campaign_id, number)), **options.get("ExpressionAttributeValues", {})}
        start = {} if after is None else {"ExclusiveStartKey": to_item(keys.task_key(campaign_id, after))}
        return self._client.query(
            TableName=self._table,
            KeyConditionExpression="pk = :pk",
            ConsistentRead=True,
            **options | start | {"ExpressionAttributeValues": values},
        )

    def _insert(self, task: Task) -> BatchStatementRequestTypeDef:
        item = to_item(keys.task_key(task.campaign_id, task.task) | task.model_dump(mode="json"))
        return statements.with_item(f'INSERT INTO "{self._table}"', item)

    def _raise(self, task: Task) -> BatchStatementRequestTypeDef:
        planned = task.model_dump(include={"slot", "generation", "revision", "batch", "client_token", "waits"})
        statement = self._update(
            task, planned, '"status" = ? AND "generation" < ?', TaskStatus.PENDING, task.generation
        )
        return {**statement, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

    def _cancel(self, task: Task, error: Problem | None) -> BatchStatementRequestTypeDef:
        why = {"error": error.model_dump()} if error else {}
        return self._update(task, {"status": TaskStatus.CANCELLED, **why}, '"status" = ?', TaskStatus.PENDING)

    def _update(
        self, task: Task, changes: dict[str, Any], condition: str, *operands: Any
    ) -> BatchStatementRequestTypeDef:
        """An update of a row that is there and meets ``condition``; every value travels as a parameter."""
        sets = " ".join(f'SET "{name}" = ?' for name in changes)
        key = keys.task_key(task.campaign_id, task.task)
        return {
            "Statement": f'UPDATE "{self._table}" {sets} WHERE "pk" = ? AND "sk" = ? AND {condition}',
            "Parameters": [value(v) for v in (*changes.values(), key["pk"], key["sk"], *operands)],
        }

    def _run(self, requests: Sequence[BatchStatementRequestTypeDef]) -> list[Any]:
        return statements.run(self._client, requests, self._sleep, NOT_AS_EXPECTED, ALREADY_THERE)
