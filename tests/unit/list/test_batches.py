"""Batches are cut so that EnrolBatch's result always fits through a state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carillon import keys
from carillon.addresses import clean
from carillon.content.typesetting import prepare
from carillon.keys import address_hash
from carillon.launch import batches
from carillon.launch.enrolment import schedule_for
from carillon.launch.tasks import Draft, TaskTable, refuse_oversized
from carillon.recipients.lists import RecipientList
from carillon.shapes import BatchLine, EnrolBatchResult, ListSpec, Step

from .conftest import QUEUE

LARGEST = 200_000
"""EnrolBatch's own promise: a state takes 256 KiB of UTF-8 (AWS_CONTRACTS 2)."""


def written(rows: list[tuple[str, str]], work: Path) -> list[bytes]:
    """The batches of a campaign whose template uses the one column beside the address."""
    work.mkdir()
    source = work / "list.csv"
    text = "email,note\n" + "".join(f'{a},"{note.replace(chr(34), chr(34) * 2)}"\n' for a, note in rows)
    source.write_text(text, encoding="utf-8", newline="")
    recipients = RecipientList(source, ListSpec(), work)
    recipients.read()
    step = Step.model_validate({"template": "t", "subject": "s", "rule": {"kind": "asap"}})
    prepared = prepare(step, "{{ note | default('') }}")
    overhead = batches.schedule_overhead("c" * 40, 12, QUEUE)
    data = {name: recipients.cell(name) for name in prepared.placeholders}
    draft = Draft(step=1, data=data, moment=None, order=None, waits=False)
    refuse_oversized(recipients, draft, overhead)
    tasks = TaskTable(recipients.database)
    tasks.add(draft)
    slots = np.arange(tasks.count(), dtype=np.int64) + 1_800_000_000
    found = list(batches.cut(recipients.database, tasks.sizes(), slots, "g12-aaaaaaaa", overhead))
    assert batches.count(tasks.sizes(), slots, overhead) == len(found)
    recipients.close()
    return [batch.content for batch in found]


def cut(rows: list[tuple[str, str]], work: Path) -> list[list[BatchLine]]:
    """The same, read."""
    return [
        [BatchLine.model_validate_json(line) for line in content.decode().removesuffix("\n").split("\n")]
        for content in written(rows, work)
    ]


def result_bytes(batch: list[BatchLine]) -> int:
    """EnrolBatch's result for a batch as JSON, escaped beyond ASCII or not, whichever is longer."""
    schedules = [schedule_for("c" * 40, 12, line, QUEUE) for line in batch]
    result = EnrolBatchResult(schedules=schedules, enrolled=len(batch), settled=0).model_dump()
    return max(len(json.dumps(result)), len(json.dumps(result, ensure_ascii=False).encode()))


NOTES = st.text(
    st.one_of(
        st.sampled_from('<>"\\&\u2028\ufffe\uffff\x7f\x01é中🙂'),
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00"),
    ),
    max_size=2_000,
)


@given(notes=st.lists(NOTES, min_size=1, max_size=6), repeat=st.integers(1, 80))
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_batch_makes_a_result_of_more_than_200_kb(
    notes: list[str], repeat: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the data: quotes, markup, other scripts, characters that need escaping three times over."""
    work = tmp_path_factory.mktemp("cut") / "work"
    rows = [(f"p{n}@example.com", notes[n % len(notes)]) for n in range(len(notes) * repeat)]
    found = cut(rows, work)
    assert [line.address for batch in found for line in batch] == [address for address, _ in rows]
    shown = [notes[n % len(notes)] for n in range(len(rows))]
    assert [line.input.get("note", "") for batch in found for line in batch] == [n if clean(n) else "" for n in shown]
    assert max(map(result_bytes, found)) <= LARGEST


@pytest.mark.parametrize("character", ["a", "<", '"', "\\", "\x01", "\x7f", "é", "\u2028", "中", "\ufffe", "🙂"])
def test_the_costliest_character_of_all_is_counted_in_full(character: str, tmp_path: Path) -> None:
    """A list of nothing but one character that is escaped at every level."""
    found = cut([(f"p{n}@example.com", "n" + character * 3_000) for n in range(60)], tmp_path / "work")
    assert sum(map(len, found)) == 60
    assert max(map(result_bytes, found)) <= LARGEST


def test_batches_are_as_long_as_the_result_allows(tmp_path: Path) -> None:
    """Plain data fill most of what a state takes: fewer batches, fewer transitions to pay for."""
    found = cut([(f"p{n}@example.com", f"note {n}") for n in range(2_000)], tmp_path / "work")
    assert len(found) > 2
    assert all(LARGEST * 0.85 < result_bytes(batch) <= LARGEST for batch in found[:-1])


def test_whoever_needs_more_than_a_schedule_holds_is_refused(tmp_path: Path) -> None:
    """Scheduler's input is 256 KB at most: one person's essay is rejected, and the others get theirs."""
    found = cut([("a@example.com", "x" * 150_000), ("b@example.com", "short")], tmp_path / "work")
    assert [[line.address for line in batch] for batch in found] == [["b@example.com"]]


def test_the_same_list_gives_the_same_bytes(tmp_path: Path) -> None:
    """A preparation that is repeated writes what it wrote: batches can be compared, and a retry changes nothing."""
    rows = [(f"p{n}@example.com", f"nöte {n % 7}") for n in range(900)]
    one, two = (written(rows, tmp_path / attempt) for attempt in ("one", "two"))
    assert one == two
    assert len(one) > 1


def test_tasks_are_written_in_parts_as_they_would_be_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tasks are sorted together, batches are the same."""
    rows = [(f"p{n}@example.com", "x" * (n % 900)) for n in range(2_000)]
    at_once = written(rows, tmp_path / "one")
    monkeypatch.setattr(batches, "_AT_ONCE", 300)
    assert written(rows, tmp_path / "two") == at_once


def test_a_line_names_the_task_as_everybody_names_it(tmp_path: Path) -> None:
    """The id that SQL makes is the one of `keys.task_id`, and the address goes out as written."""
    [[line]] = cut([("Ada.Brandt@Example.COM", "")], tmp_path / "work")
    assert line.task == keys.task_id(1, "ada.brandt@example.com")
    assert line.address == "Ada.Brandt@Example.COM"
    assert line.input == {}


@pytest.mark.parametrize("odd", [False, True])
def test_tasks_are_numbered_in_the_lists_order_however_long_it_is(odd: bool, tmp_path: Path) -> None:
    """Both ways in, over several of DuckDB's row groups, with joins and refusals on the way."""
    work = tmp_path / "work"
    work.mkdir()
    source = work / "list.csv"
    zones = ("Europe/Berlin", "Asia/Tokyo", "nowhere")
    rows = [f"p{n * 7919 % 300_007}@example.com,{zones[n % 3]}\n" for n in range(300_000)]
    source.write_text("email,zone\n" + ("short@example.com\n" if odd else "") + "".join(rows), newline="")
    recipients = RecipientList(source, ListSpec(timezone_column="zone", fallback_timezone="UTC"), work)
    recipients.read()
    recipients.refuse_hashes({address_hash("short@example.com"), address_hash("p7919@example.com")}, "suppressed")
    tasks = TaskTable(recipients.database)
    for step in (1, 2):
        tasks.add(Draft(step=step, data={"zone": "c1"}, moment=None, order=None, waits=False))
    found = recipients.database.execute("SELECT address FROM tasks ORDER BY n").fetchall()
    numbers = recipients.database.execute("SELECT n FROM tasks ORDER BY n").fetchnumpy()["n"]
    recipients.close()
    expected = [(row.partition(",")[0],) for row in rows if not row.startswith("p7919@")]
    assert found == expected * 2
    assert (numbers == np.arange(len(found))).all()
