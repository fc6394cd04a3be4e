"""Task rows, and the suppressions beside them, as the sender reads and changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from botocore.exceptions import ClientError

from carillon import keys
from carillon.adapters import aws, suppressions
from carillon.adapters.items import from_item, to_item, value
from carillon.delivery.claims import Change, RowConflict, SuppressionKey, TaskKey
from carillon.shapes import Task

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import KeysAndAttributesTypeDef

_ROUNDS = 5
"""DynamoDB hands keys back unprocessed when a partition is busy; these rounds, each after boto3's own, outlast that."""


class TaskRows:
    """`carillon.delivery.claims.Rows` on DynamoDB."""

    def __init__(self, tasks_table: str, suppressions_table: str, client: DynamoDBClient | None = None) -> None:
        self._tasks = tasks_table
        self._suppressions = suppressions_table
        self._client = client or aws.dynamodb()

    def read(
        self, tasks: Collection[TaskKey], suppressions_: Collection[SuppressionKey]
    ) -> tuple[dict[TaskKey, Task], set[SuppressionKey]]:
        """One BatchGetItem over both tables, and another for what it leaves.

        Raises:
            TimeoutError: some keys stay unprocessed.
        """
        wanted: dict[str, KeysAndAttributesTypeDef] = {
            self._tasks: {"Keys": [to_item(keys.task_key(*task)) for task in tasks], "ConsistentRead": True},
            self._suppressions: {"Keys": [suppressions.key(*k) for k in suppressions_], "ConsistentRead": True},
        }
        rows: dict[TaskKey, Task] = {}
        suppressed: set[SuppressionKey] = set()
        for _ in range(_ROUNDS):
            answer = self._client.batch_get_item(RequestItems=wanted)
            for item in answer["Responses"].get(self._tasks, ()):
                row = _row(item)
                rows[row.campaign_id, row.task] = row
            suppressed |= {suppressions.key_of(item) for item in answer["Responses"].get(self._suppressions, ())}
            unprocessed = answer.get("UnprocessedKeys")
            if not unprocessed:
                return rows, suppressed
            wanted = cast("dict[str, KeysAndAttributesTypeDef]", unprocessed)
        raise TimeoutError("DynamoDB leaves keys unprocessed")

    def apply(self, change: Change) -> None:
        """See `carillon.delivery.claims.Rows.apply`."""
        try:
            self._client.update_item(**self._update(change))
        except ClientError as error:
            if error.response["Error"]["Code"] != _CONFLICT:
                raise
            raise RowConflict(_found(error.response)) from None

    def apply_together(self, changes: Sequence[Change]) -> None:
        """See `carillon.delivery.claims.Rows.apply_together`. boto3 gives its own repetitions one ClientRequestToken,
        so that a lost reply is no conflict."""
        try:
            self._client.transact_write_items(TransactItems=[{"Update": self._update(change)} for change in changes])
        except ClientError as error:
            reasons: Any = error.response.get("CancellationReasons", ())
            refused = next((r for r in reasons if r["Code"] == "ConditionalCheckFailed"), None)
            if refused is None:
                raise
            raise RowConflict(_found(refused)) from None

    def _update(self, change: Change) -> Any:
        """The arguments of UpdateItem, which are those of an Update in a transaction too."""
        names, update, condition = _expressions((*change.expected,), (*change.sets,), change.removes)
        values = {":before": value(change.before), ":after": value(change.after)}
        values |= {f":e{n}": value(v) for n, v in enumerate(change.expected.values())}
        values |= {f":s{n}": value(v) for n, v in enumerate(change.sets.values())}
        return {
            "TableName": self._tasks,
            "Key": to_item(keys.task_key(change.campaign_id, change.task)),
            "UpdateExpression": update,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }


@cache
def _expressions(
    expected: tuple[str, ...], sets: tuple[str, ...], removes: tuple[str, ...]
) -> tuple[dict[str, str], str, str]:
    """Attribute names, update and condition of a change of these attributes: there are few such, and many changes."""
    names = {"#status": "status"}
    conditions = ["#status = :before"]
    for n, path in enumerate(expected):
        parts = path.split(".")
        names |= {f"#e{n}{m}": part for m, part in enumerate(parts)}
        conditions.append(f"{'.'.join(f'#e{n}{m}' for m in range(len(parts)))} = :e{n}")
    names |= {f"#s{n}": name for n, name in enumerate(sets)} | {f"#r{n}": name for n, name in enumerate(removes)}
    settings = ", ".join(["#status = :after", *(f"#s{n} = :s{n}" for n in range(len(sets)))])
    removals = ", ".join(f"#r{n}" for n in range(len(removes)))
    return names, f"SET {settings}{f' REMOVE {removals}' if removals else ''}", " AND ".join(conditions)


_CONFLICT = "ConditionalCheckFailedException"


def _found(answer: Any) -> Task | None:
    return _row(answer["Item"]) if answer.get("Item") else None


def _row(item: Mapping[str, Any]) -> Task:
    return Task.model_validate(from_item(item))
