"""The command `bench`: how good recall is."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.model.settings import STEPS, Search

if TYPE_CHECKING:
    from holdfast.measuring import Measured, Ranking


@click.group()
def bench() -> None:
    """Measure what this memory is worth."""


@bench.command("recall")
@click.argument("set", type=click.File("rb"))
@click.option("--out", type=click.File("w", encoding="utf-8"), help="Write the answers there, one line a question.")
@click.option("--lexical", is_flag=True, help="By words alone, also where an embedder is installed.")
@click.option("--without", multiple=True, type=click.Choice(list(STEPS)), help="Leave out this step of the ranking.")
@click.option("--foreign", is_flag=True, help="Also ask each conversation questions of the others.")
@click.option("--store", default="", help="Do it in this database, postgresql://…, a tenant for each conversation.")
@click.option("--other", multiple=True, type=click.File("rb"), help="With --foreign: also those of this set.")
@common
def recall(
    set: IO[bytes], out: IO[str] | None, lexical: bool, without: tuple[str, ...], foreign: bool, store: str,
    other: tuple[IO[bytes], ...], root: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Ask recall the questions of SET, a JSON file of conversations with questions, and compare with what is right.

    Every conversation goes into a fresh memory, which is removed again. R@k is the share of what is right among the
    first k, any@k and all@k whether any or every right session is, NDCG@10 counts earlier places for more. The
    settings of `[search]` are those of the root if one is given. The right answer to a question of another
    conversation is that nothing is relevant: how often it was given is told with --foreign.
    """
    import msgspec

    from holdfast import measuring

    given = measuring.read(set.read())
    search = Search()
    if root:
        with open_root(root) as memory:
            search = memory.settings.search
    off = {*without, *(("meaning",) if lexical else ())}
    search = msgspec.structs.replace(search, **{name: STEPS[name] for name in off})
    with show.progress("asking") as progress:
        others = [measuring.read(file.read()) for file in other] if foreign or other else None
        asked = measuring.run(given, search, progress, others, store)
    if out is not None:
        _write(out, asked.rankings)
    measured = measuring.measure(given, asked)
    if show.wants_json(as_json):
        show.as_json(measured)
    else:
        _print(measured)


def _write(out: IO[str], rankings: list[Ranking]) -> None:
    import msgspec

    for one in rankings:
        line = {"question": one.question, "turns": one.turns, "sessions": one.sessions}
        out.write(msgspec.json.encode(line).decode() + "\n")


def _print(measured: Measured) -> None:
    names = list(measured.scores)
    rows = {"all": measured.scores} | measured.categories
    table = [
        [label, *(f"{scores[name]:.1f}" if name in scores else "" for name in names)] for label, scores in rows.items()
    ]
    show.table((measured.name, *names), table)
    click.echo(
        f"{measured.questions} questions, {measured.silent} of them without an answer;"
        f" {measured.p50_ms} ms each at the median, {measured.p95_ms} ms at the 95th percentile."
    )
    if measured.foreign:
        click.echo(f"{measured.foreign_silent} of {measured.foreign} questions of other conversations had no answer.")
