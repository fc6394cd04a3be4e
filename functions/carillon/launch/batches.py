"""Planned tasks cut into batches for the Distributed Map, in the order of their slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import duckdb
import numpy as np

from carillon.launch import enrolment
from carillon.shapes import ManifestLine
from carillon.sql import text
from carillon.timing.curve import Ints

LARGEST_RESULT = 199_000
"""Bytes of EnrolBatch's schedules: its result stays under 200 KB with what is around them (a state takes 256 KiB)."""

LARGEST_SCHEDULE = 100_000
"""Bytes of one: Scheduler's own limit for a target's input is 256 KB, and a recipient who needs more is refused."""

_AT_ONCE = 500_000
"""Tasks whose lines are in memory together, at some 300 bytes each."""


def schedule_overhead(campaign_id: str, generation: int, queue_url: str) -> int:
    """Bytes that a task takes in EnrolBatch's result at most, its address and its data left out."""
    schedule = enrolment.schedule_for(campaign_id, generation, enrolment.LARGEST_LINE, queue_url)
    return enrolment.schedule_size(schedule)


def size_sql(input_json: str, address: str, members: int | None = None) -> str:
    """An SQL expression: what `schedule_overhead` left out, at most.

    ``members``: of the data, at most, if that is known; the quotes around them need not be counted then.

    The data are JSON in a message that is a string in a call that is a string in the result: a quote or backslash
    becomes four characters, ``<`` seven and DEL six. A character beyond ASCII becomes at most six if it has two
    bytes, nine if three, twelve if four. Control characters are escapes in JSON text already.
    """

    def count(character: str) -> str:
        return f"(length({input_json}) - length(replace({input_json}, {text(character)}, '')))"

    quotes = count(chr(34))
    escaped = f"3 * {quotes} + 3 * {count(chr(92))} + 6 * ({count('<')} + {count(chr(127))})"
    plain = f"3 * {quotes if members is None else 4 * members}"
    more_bytes = f"(strlen({input_json}) - length({input_json}))"
    seldom = " OR ".join(f"contains({input_json}, {text(character)})" for character in (chr(92), "<", chr(127)))
    return (
        f"(length({address}) + length({input_json}) + 5 * {more_bytes} "
        f"+ CASE WHEN {seldom} THEN {escaped} ELSE {plain} END)"
    )


def direct_size_sql(input_json: str, address: str, members: int | None = None) -> str:
    """The same on the direct route, where each value is there twice: plain, and escaped for HTML.

    ``&`` becomes five characters there, ``>`` four and ``'`` six; ``<`` and ``"`` are shorter than as JSON in JSON.
    Each name is there twice as well, with five characters before it.
    """

    def count(character: str) -> str:
        return f"(length({input_json}) - length(replace({input_json}, {text(character)}, '')))"

    seldom = " OR ".join(f"contains({input_json}, {text(character)})" for character in "&>'")
    return (
        f"(2 * {size_sql(input_json, address, members)} + 3 * {count(chr(34))} "
        f"+ CASE WHEN {seldom} THEN 4 * {count('&')} + 3 * {count('>')} + 5 * {count(chr(39))} ELSE 0 END)"
    )


@dataclass(frozen=True)
class Batch:
    """One batch: the manifest's line for it, and its own lines (`BatchLine` as JSON)."""

    entry: ManifestLine
    content: bytes


def cut(database: duckdb.DuckDBPyConnection, sizes: Ints, slots: Ints, attempt: str, overhead: int) -> Iterator[Batch]:
    """Batches of the table ``tasks`` in the order of ``slots``, each as long as EnrolBatch's result allows.

    ``sizes`` and ``slots`` are by ``n``; a slot of -1 is left out.
    """
    order = _order(slots)
    edges = _edges(sizes[order] + overhead)
    number = 0
    for some in _groups(edges):
        lines = _lines(database, order[some[0] : some[-1]], slots)
        for start, end in pairwise(some):
            number += 1
            entry = ManifestLine(batch=f"{attempt}/{number}", count=end - start, first_slot=int(slots[order[start]]))
            yield Batch(entry, b"".join(lines[start - some[0] : end - some[0]]))


def _lines(database: duckdb.DuckDBPyConnection, part: Ints, slots: Ints) -> list[bytes]:
    """The lines of the tasks ``part``, each with its line feed, in that order.

    DuckDB gives them in any order: to put them where they belong is cheaper here than to sort rows so long there.
    """
    cursor = database.cursor()
    cursor.register("plan", {"n": part, "slot": slots[part], "position": np.arange(len(part), dtype=np.int64)})
    # Ids, accepted addresses and zones have nothing that JSON escapes, and no line holds a control character.
    found = cursor.execute(
        """
        SELECT position, encode(concat('{"task":"', task, '","step":', step, ',"address":"', address, '","timezone":',
            coalesce('"' || timezone || '"', 'null'), ',"slot":', slot, ',"revision":0',
            CASE WHEN waits THEN ',"waits":true' ELSE '' END, ',"input":', input, '}', chr(10))) AS line
        FROM tasks JOIN plan USING (n)
        """
    ).fetchnumpy()
    cursor.close()
    lines = np.empty(len(part), dtype=object)
    lines[found["position"]] = found["line"]
    return lines.tolist()


def count(sizes: Ints, slots: Ints, overhead: int) -> int:
    """How many batches `cut` makes."""
    return len(_edges(sizes[_order(slots)] + overhead)) - 1


def _order(slots: Ints) -> Ints:
    planned = np.flatnonzero(slots >= 0)
    return planned[np.argsort(slots[planned], kind="stable")]


def _edges(sizes: Ints) -> list[int]:
    """Where batches begin, and where the last one ends."""
    total = np.cumsum(sizes)
    edges = [0]
    while edges[-1] < len(sizes):
        start = edges[-1]
        before = int(total[start - 1]) if start else 0
        edges.append(max(int(np.searchsorted(total, before + LARGEST_RESULT, side="right")), start + 1))
    return edges


def _groups(edges: list[int]) -> Iterator[list[int]]:
    """``edges`` in stretches of about `_AT_ONCE` tasks, whole batches; each begins where the one before ends."""
    first = 0
    for last in range(1, len(edges)):
        if last == len(edges) - 1 or edges[last + 1] - edges[first] > _AT_ONCE:
            yield edges[first : last + 1]
            first = last
