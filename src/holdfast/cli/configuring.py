"""`holdfast settings`: what holds and why; and putting others in their place, also where they cannot be read."""

from __future__ import annotations

from typing import BinaryIO

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.common import common, nearest
from holdfast.errors import Invalid
from holdfast.owner import settings_file
from holdfast.roots import MOST_SETTINGS


@click.command()
@click.option("--text", is_flag=True, help="Print the text of holdfast.toml as it is.")
@click.option("--put", type=click.File("rb"), help="Make the text of this file (- for standard input) holdfast.toml.")
@common
def settings(root: str | None, as_json: bool, text: bool, put: BinaryIO | None) -> None:
    """Show which settings hold, and where each comes from.

    To change those of a memory in a database: holdfast settings --text > new.toml, edit it, holdfast settings --put
    new.toml. What cannot be read as settings is refused, and the text before is kept.
    """
    location = root or nearest()
    if put:
        settings_file.put(location, _read(put))
        click.echo("Done; programs that have the memory open go on as before until they open it again.")
    elif text:
        click.echo(settings_file.text_of(location), nl=False)
    else:
        _listed(settings_file.in_effect(settings_file.text_of(location)), as_json)


def _read(file: BinaryIO) -> str:
    try:
        return file.read(MOST_SETTINGS + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("The new settings are not UTF-8.", "Save them as UTF-8.") from None


def _listed(found: list[settings_file.Setting], as_json: bool) -> None:
    if show.wants_json(as_json):
        show.as_json(found)
    else:
        rows = [(one.name, one.source, msgspec.json.encode(one.value).decode()) for one in found]
        show.table(("setting", "from", "value"), rows, whole=("setting",))
