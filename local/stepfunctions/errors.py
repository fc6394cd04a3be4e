"""Error names of Step Functions, and which of them a Retry or Catch can see."""

from __future__ import annotations

ALL = "States.ALL"
TASK_FAILED = "States.TaskFailed"
TIMEOUT = "States.Timeout"
RUNTIME = "States.Runtime"
DATA_LIMIT_EXCEEDED = "States.DataLimitExceeded"
QUERY_EVALUATION = "States.QueryEvaluationError"
NO_CHOICE_MATCHED = "States.NoChoiceMatched"
EXCEED_TOLERATED_FAILURE_THRESHOLD = "States.ExceedToleratedFailureThreshold"
ITEM_READER_FAILED = "States.ItemReaderFailed"
RESULT_WRITER_FAILED = "States.ResultWriterFailed"

# 256 KiB of UTF-8: the limit of an input, a result, an output, the variables of one Assign.
DATA_LIMIT = 262_144
# 10 MiB: all variables of an execution together.
VARIABLES_LIMIT = 10_485_760


class StateError(Exception):
    """What a state fails with: ``error`` is matched by ErrorEquals, ``cause`` is for people (may be empty)."""

    def __init__(self, error: str, cause: str = "") -> None:
        super().__init__(f"{error}: {cause}")
        self.error = error
        self.cause = cause

    @property
    def output(self) -> dict[str, str]:
        """The Error Output, ``$states.errorOutput``; no Cause where AWS gives none."""
        return {"Error": self.error, **({"Cause": self.cause} if self.cause else {})}


class QueryFailure(Exception):
    """A field whose expression failed; ``location`` as AWS names it (``Arguments/Input/key``)."""

    def __init__(self, location: str, sentence: str) -> None:
        super().__init__(sentence)
        self.location = location
        self.sentence = sentence


def matches(error: str, error_equals: tuple[str, ...]) -> bool:
    """Whether an ErrorEquals list covers ``error``, as "Handling errors in Step Functions" describes.

    ``States.Runtime`` is never caught, ``States.DataLimitExceeded`` only by its own name, and
    ``States.TaskFailed`` stands for everything else but ``States.Timeout``.
    """
    if error == RUNTIME:
        return False
    if error in error_equals:
        return True
    if error == DATA_LIMIT_EXCEEDED:
        return False
    return ALL in error_equals or (TASK_FAILED in error_equals and error != TIMEOUT)
