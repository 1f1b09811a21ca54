"""How good recall is, measured in a database: the same questions, the same answers, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pgserver

TURNS = [
    ("t1", "s1", "ann", "We adopted a kitten, and she sleeps on the couch all day."),
    ("t2", "s1", "bob", "How lovely! What is her name?"),
    ("t3", "s2", "ann", "The car broke down on the way to Lisbon; a mechanic in Evora repaired it."),
    ("t4", "s2", "bob", "I hope that was not expensive."),
    ("t5", "s3", "ann", "I started to learn the cello in March."),
]
QUESTIONS = [("q1", "Where was Ann's car repaired?", "t3", "s2"), ("q2", "Which instrument does Ann play?", "t5", "s3")]
SET = {
    "name": "small",
    "corpora": [
        {
            "name": name,
            "turns": [
                {"id": id, "session": session, "time": f"2024-05-0{number + 1}T10:00:00Z", "speaker": who,
                 "role": "user", "text": text}
                for number, (id, session, who, text) in enumerate(TURNS)
            ],
            "questions": [
                {"id": f"{name} {id}", "question": text, "turns": [turn], "sessions": [session]}
                for id, text, turn, session in QUESTIONS
            ],
        }
        for name in ("one", "two")
    ],
}  # fmt: skip


def measured(path: Path, out: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "holdfast", "bench", "recall", str(path), "--out", str(out), "--json", *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_recall_is_as_good_in_a_database_and_no_tenant_is_left(
    tmp_path: Path, server: pgserver.Server, database: str, address: str
) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(SET))
    in_files = measured(path, tmp_path / "files.jsonl")
    there = measured(path, tmp_path / "database.jsonl", "--store", address)
    assert there["scores"] == in_files["scores"]
    assert (tmp_path / "database.jsonl").read_text() == (tmp_path / "files.jsonl").read_text()
    assert there["questions"] == 4
    tables = server.run(
        "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'p'", database
    )
    assert tables
    for (table,) in tables:
        left = f"SELECT count(*) FROM holdfast.{table} WHERE tenant LIKE 'temporary-%'"
        assert server.run(left, database) == [(0,)], table


def test_a_store_that_is_no_address_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(SET))
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "bench", "recall", str(path), "--store", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "not the address of a PostgreSQL database" in done.stderr
