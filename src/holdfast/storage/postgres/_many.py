"""Many documents at a time, for memories that move: what there is, and adding what is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.errors import Invalid
from holdfast.model.records import version_of
from holdfast.storage.postgres import _rows
from holdfast.storage.postgres.transactions import Turn


def versions(turn: Turn, paths: Sequence[str]) -> dict[str, str]:
    """Return the versions of those of these files that are there."""
    rows = turn.rows(
        "SELECT path, version FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(paths)s)",
        paths=list(paths),
    )
    return {path: version or _worked_out(turn, path) for path, version in rows}


def _worked_out(turn: Turn, path: str) -> str:
    found = _rows.look(turn, path)
    return _rows.version(turn, path, found) if found else ""


def create(turn: Turn, files: Mapping[str, bytes], author: _rows.Author) -> set[str]:
    """Put documents where nothing is, and return the paths of those that are there by this write."""
    _check_free(turn, files)
    rows = turn.rows(
        """INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
        SELECT %(tenant)s, made.path, made.inode, length(made.data), false, made.torn, made.version, made.data,
            %(op)s, %(writer)s
        FROM unnest(%(paths)s::text[], %(inodes)s::bigint[], %(torn)s::boolean[], %(versions)s::text[],
            %(data)b::bytea[]) AS made (path, inode, torn, version, data)
        ON CONFLICT (tenant, path) DO NOTHING RETURNING path""",
        paths=list(files), inodes=[_rows.new_inode() for _ in files], data=list(files.values()),
        torn=[bool(data) and not data.endswith(b"\n") for data in files.values()],
        versions=[version_of(data) for data in files.values()], op=author.op, writer=author.writer,
    )  # fmt: skip
    if turn.doubtful:  # an earlier try may have been saved
        rows += turn.rows(
            "SELECT path FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(paths)s) AND op = %(op)s",
            paths=list(files), op=author.op,
        )  # fmt: skip
    return {row[0] for row in rows}


def _check_free(turn: Turn, files: Mapping[str, bytes]) -> None:
    """See that none of the new files has a file for a folder, or is a folder itself.

    Where a folder begins and ends is worked out here: what is not leak-proof keeps the planner from its index.
    """
    above = {"/".join(parts[:count]) for path in files for parts in [path.split("/")] for count in range(1, len(parts))}
    if row := turn.row(
        "SELECT path FROM holdfast.files WHERE tenant = %(tenant)s AND path = ANY(%(above)s) LIMIT 1",
        above=list(above),
    ):
        raise Invalid(f"{row[0]} is a file, and should be a folder.", "Move that file away.")
    if row := turn.row(
        """SELECT wanted.path FROM unnest(%(paths)s::text[], %(starts)s::text[], %(stops)s::text[])
            AS wanted (path, start, stop) CROSS JOIN LATERAL (
            SELECT 1 FROM holdfast.files
            WHERE tenant = %(tenant)s AND files.path > wanted.start AND files.path < wanted.stop
            ORDER BY files.path LIMIT 1) AS inside LIMIT 1""",
        paths=list(files), starts=[f"{path}/" for path in files], stops=[f"{path}0" for path in files],
    ):  # fmt: skip
        raise Invalid(f"{row[0]} is a folder.", "Move it away.")
