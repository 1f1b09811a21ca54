"""The tables from which tasks are claimed: derived from the logs of tasks, so that a claim need not read them."""

from __future__ import annotations

from holdfast.storage.postgres.schema import tenanted

_TASKS = """
CREATE TABLE holdfast.tasks (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    made text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    waiting integer NOT NULL,
    stage text COLLATE "C" NOT NULL,
    due bigint,
    until bigint,
    graph text COLLATE "C" NOT NULL,
    tags text[] NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (tenant, path, id)
) PARTITION BY HASH (tenant);
CREATE INDEX tasks_to_claim ON holdfast.tasks (tenant, path, priority DESC, made) WHERE waiting = 0 AND due IS NOT NULL;
CREATE INDEX tasks_by_id ON holdfast.tasks (tenant, id);
"""

_TASK_TIES = """
CREATE TABLE holdfast.task_ties (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL,
    before text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, path, before, id)
) PARTITION BY HASH (tenant);
"""

_TASK_OPS = """
CREATE TABLE holdfast.task_ops (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL,
    op text COLLATE "C" NOT NULL,
    told bytea NOT NULL,
    PRIMARY KEY (tenant, path, op)
) PARTITION BY HASH (tenant);
"""

_TASK_LOGS = """
CREATE TABLE holdfast.task_logs (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL,
    inode bigint NOT NULL,
    size bigint NOT NULL,
    PRIMARY KEY (tenant, path)
) PARTITION BY HASH (tenant);
"""

TASKS = (
    _TASKS + tenanted("tasks", room=80) + _TASK_TIES + tenanted("task_ties") + _TASK_OPS + tenanted("task_ops")
    + _TASK_LOGS + tenanted("task_logs", room=80)
)  # fmt: skip
