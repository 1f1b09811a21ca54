"""Two agents on two machines share a decision through a database: `scripts/demo --postgres`.

It starts its own PostgreSQL and creates two memories in files that name the same shared one. One agent saves a
decision, its owner pushes it, and the other agent finds it. All of this uses ordinary commands.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pgserver

_SCOPE = "webshop"
_QUESTION = "which database do we use for orders?"


def main() -> None:
    with contextlib.ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-team-")))
        if given := next((word for word in sys.argv[1:] if word.startswith("postgres")), ""):
            address = given
        else:
            server = open_.enter_context(pgserver.private())
            address = server.at(open_.enter_context(server.database("team")), tenant="team")
        show(folder, address)


def show(folder: Path, address: str) -> None:
    ann, ben = folder / "ann", folder / "ben"
    step("One database, and two memories in files that share it")
    say(run("init", address)["root"])
    for root in (ann, ben):
        run("init", str(root))
        with (root / "holdfast.toml").open("a") as settings:
            settings.write(f'\n[shared]\nstore = "{address}"\ntimeout_seconds = 30\n')  # this machine may be busy
        run("trust", str(root))
        say(f"{root.name}: {root}/holdfast.toml names it under [shared]")

    step("Ann's agent saves a decision; Ben's agent cannot find it")
    run("put", "overview", "It runs on one server.", "--title", "Webshop", "--field", "description=The shop", root=ann)
    words = "PostgreSQL for orders: we need transactions over several tables."
    run("put", "decision", words, "--title", "Orders live in PostgreSQL", "--scope", _SCOPE, root=ann)
    answer(ben)

    step("Ann previews the push and then pushes; `holdfast watch` reports the change")
    with watching(address) as heard:
        tell_counts(run("push", "--scope", _SCOPE, "--dry-run", root=ann))
        tell_counts(run("push", "--scope", _SCOPE, "--yes", root=ann))
        for line in heard:
            change = json.loads(line)
            say(f"watch: {change['what']} {change['kind']} in {change.get('scope') or '-'}: {change.get('title', '')}")
            if change["kind"] == "decision":
                break

    step("Ben's agent asks again: the answer says that it is from the shared memory")
    found = answer(ben)
    if not any("PostgreSQL" in hit for hit in found):
        raise SystemExit("the decision was not found")

    step("Another tenant of the same database sees nothing")
    if answer(of_strangers(address)):
        raise SystemExit("another tenant found something")

    step("The database can be exported to files at any time")
    done = run("export", str(folder / "copy"), root=address)
    say(f"{done['files']} files, {done['records']} records in {folder / 'copy'}")
    for path in sorted((folder / "copy").rglob("decisions.md")):
        say(str(path.relative_to(folder)))


def of_strangers(address: str) -> str:
    """Return the address of another tenant of the same database."""
    place, _, query = address.partition("?")
    others = [pair for pair in urllib.parse.parse_qsl(query) if pair[0] != "tenant"]
    return f"{place}?{urllib.parse.urlencode([*others, ('tenant', 'strangers')])}"


@contextlib.contextmanager
def watching(address: str) -> Iterator[Iterator[str]]:
    """Follow the shared memory; yield the lines that `holdfast watch` prints."""
    command = [sys.executable, "-m", "holdfast", "watch", "--root", address, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it was asked for
        assert process.stderr is not None
        try:
            process.stderr.readline()  # it is ready
            yield iter(process.stdout)
        finally:
            process.terminate()


def answer(root: Path | str) -> list[str]:
    """Ask a memory, and print what it found and where."""
    say(f"? {_QUESTION}")
    reply = run("recall", _QUESTION, root=root)
    hits = [(hit["record"].get("title") or hit["record"]["id"], hit.get("store", "here")) for hit in reply["hits"]]
    found = [f"{title} ({store})" for title, store in hits]
    for line in found[:3] or ["Nothing relevant."]:
        say(f"  {line}")
    return found


def tell_counts(moved: dict[str, Any]) -> None:
    counts = ", ".join(f"{name}: {tally['records']}" for name, tally in moved.get("counts", {}).items())
    say(f"{'moved' if moved.get('done') else 'would move'} to {moved['target']}: {counts}")


def run(*words: str, root: Path | str = "") -> dict[str, Any]:
    """Run a command and return its JSON reply."""
    environment = os.environ | ({"HOLDFAST_ROOT": str(root)} if root else {})
    command = [sys.executable, "-m", "holdfast", *words, "--json"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise SystemExit(f"holdfast {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    reply = json.loads(done.stdout)
    return reply if isinstance(reply, dict) else {"all": reply}


def step(title: str) -> None:
    print(f"\n== {title}")


def say(text: str) -> None:
    print(f"   {text}")


if __name__ == "__main__":
    main()
