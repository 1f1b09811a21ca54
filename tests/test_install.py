"""Adding Holdfast to the clients' configuration files and taking it out again, in a home folder of its own."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fork_server
from holdfast import clients
from holdfast.clients import CLIENTS, EVENTS, LATER, Hooks, Server, hook_line
from holdfast.errors import Conflict

PLACES = {
    "claude-code": ".claude.json",
    "claude-desktop": "Library/Application Support/Claude/claude_desktop_config.json"
    if sys.platform == "darwin"
    else ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "codex": ".codex/config.toml",
    "vscode": "Library/Application Support/Code/User/mcp.json"
    if sys.platform == "darwin"
    else ".config/Code/User/mcp.json",
}
KEYS = {name: client.key for name, client in CLIENTS.items()}


class Home:
    """A home folder with a project and a memory root in it, and a shell in the project."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.root = path / "memory"
        self.project = path / "project"
        self.root.mkdir()
        self.project.mkdir()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = f"{self.path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"HOME": str(self.path), "PATH": path, "HOLDFAST_ROOT": str(self.root), "TERM": "dumb"}

    def run(self, *words: str, text: str = "") -> Any:
        return fork_server.run(
            [sys.executable, "-m", "holdfast", *words],
            env=self.environment, cwd=self.project, capture_output=True, text=True, input=text, timeout=60,
        )  # fmt: skip

    def do(self, *words: str) -> Any:
        done = self.run(*words, "--yes")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def add_program(self, name: str) -> None:
        path = self.path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def file(self, client: str) -> pathlib.Path:
        return self.path / PLACES[client]

    def write(self, client: str, text: str) -> pathlib.Path:
        path = self.file(client)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def entry(self, client: str) -> dict[str, Any]:
        text = self.file(client).read_text()
        read = tomllib.loads(text) if client == "codex" else json.loads(text)
        found: dict[str, Any] = read[KEYS[client]]["holdfast"]
        return found


@pytest.fixture
def home(tmp_path: pathlib.Path) -> Home:
    return Home(tmp_path.resolve())


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_configuration_gets_one_and_loses_it_again(home: Home, client: str) -> None:
    told = home.do("install", client)
    assert (told["file"], told["changed"]) == (str(home.file(client)), True)
    entry = home.entry(client)
    assert entry["args"][-3:] == ["mcp", "--root", str(home.root)]
    assert entry.get("type") == ("stdio" if client in ("claude-code", "vscode") else None)
    asked = [entry["command"], *entry["args"], "--help"]
    assert os.path.isabs(entry["command"])
    assert "Model Context Protocol" in subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout
    before = home.file(client).read_bytes()
    assert home.do("install", client)["changed"] is False
    assert home.file(client).read_bytes() == before
    home.do("uninstall", client)
    assert not home.file(client).exists()
    assert home.do("uninstall", client)["changed"] is False


JSON_TEXTS = [
    "",
    "{}",
    "{ }\n",
    '{"theme": "dark"}',
    '{\n\t"theme": "dark",\n\t"nested": {\n\t\t"x": [1, 2]\n\t}\n}\n',
    '{\n  "KEY": {}\n}\n',
    '{\n  "KEY": {\n    "other": {\n      "command": "x",\n      "env": {"A": "é"}\n    }\n  },\n  "n": 1.0\n}',
    '{"KEY":{"other":{"command":"x"}},"big":12345678901234567890}',
    '{\r\n    "KEY": {\r\n        "other": {}\r\n    }\r\n}\r\n',
]
TOML_TEXTS = [
    "",
    'model = "o"  # my choice\n',
    'model = "o"',
    '# mine\n\n[mcp_servers.other]\ncommand = "x"\nargs = [\n  "a",\n]\n\n[profiles.fast]\nmodel = "m"\n',
]


@pytest.mark.parametrize(
    ("client", "text"),
    [(client, text.replace("KEY", KEYS[client])) for client in ("claude-code", "vscode") for text in JSON_TEXTS]
    + [("codex", text) for text in TOML_TEXTS],
)
def test_what_was_there_stays_and_comes_back_byte_by_byte(home: Home, client: str, text: str) -> None:
    path = home.write(client, "")
    path.write_bytes(text.encode())
    path.chmod(0o640)
    told = home.do("install", client)
    assert pathlib.Path(told["backup"]).read_bytes() == text.encode()
    assert told["backup"] == f"{path}.holdfast-backup"
    assert path.stat().st_mode & 0o777 == 0o640
    assert home.entry(client)["args"][-1] == str(home.root)
    home.do("uninstall", client)
    assert path.read_bytes() == text.encode()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    top=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4),
    servers=st.none() | st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=3), JSON_VALUES)),
    indent=st.none() | st.integers(0, 4) | st.just("\t"),
    ascii_only=st.booleans(),
)
def test_any_plain_json_takes_our_entry_and_gives_it_back(
    top: dict[str, Any], servers: dict[str, Any] | None, indent: Any, ascii_only: bool
) -> None:
    client = CLIENTS["cursor"]
    whole = top if servers is None else top | {client.key: servers}
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only)
    ours = Server(client, client.entry(["/bin/holdfast", "mcp"]))
    merged = ours.merge(text)
    wanted = {"command": "/bin/holdfast", "args": ["mcp"]}
    assert json.loads(merged) == whole | {client.key: (servers or {}) | {"holdfast": wanted}}
    assert ours.merge(merged) == merged
    assert ours.unmerge(merged, text) == text


def test_the_toolset_is_part_of_the_command(home: Home) -> None:
    home.do("install", "cursor", "--toolset", "core,tasks")
    args = home.entry("cursor")["args"]
    assert args[-5:] == ["mcp", "--toolset", "core,tasks", "--root", str(home.root)]
    refused = home.run("install", "cursor", "--toolset", "cor", "--yes")
    assert refused.returncode == 2 and "There is no toolset" in refused.stderr
    assert home.entry("cursor")["args"] == args
    home.do("install", "cursor")
    assert "--toolset" not in home.entry("cursor")["args"]


def test_another_root_replaces_the_entry_and_keeps_what_was_added_to_it(home: Home) -> None:
    home.do("install", "cursor")
    told = json.loads(home.file("cursor").read_text())
    told["mcpServers"]["holdfast"]["env"] = {"A": "b"}
    home.write("cursor", json.dumps(told))
    (home.path / "other").mkdir()
    home.do("install", "cursor", "--root", str(home.path / "other"), "--workspace", "alpha")
    entry = home.entry("cursor")
    assert entry["args"][-4:] == ["--root", str(home.path / "other"), "--workspace", "alpha"]
    assert entry["env"] == {"A": "b"}
    home.do("uninstall", "cursor")
    assert not home.file("cursor").exists()


def test_codex_keeps_tables_below_ours_and_comments(home: Home) -> None:
    home.do("install", "codex")
    path = home.file("codex")
    path.write_text(path.read_text() + '\n[mcp_servers.holdfast.env]\nA = "b"\n\n# theirs\n[other]\nx = 1\n')
    home.do("install", "codex", "--workspace", "alpha")
    read = tomllib.loads(path.read_text())
    assert read["mcp_servers"]["holdfast"]["env"] == {"A": "b"}
    assert read["mcp_servers"]["holdfast"]["args"][-1] == "alpha"
    home.do("uninstall", "codex")
    assert path.read_text().strip() == "# theirs\n[other]\nx = 1"


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("vscode", '{\n  // my servers\n  "servers": {\n}\n'),
        ("cursor", '{"mcpServers": {},,}'),
        ("cursor", "[]"),
        ("cursor", '{"mcpServers": 3}'),
        ("codex", "not toml"),
        ("codex", "mcp_servers = 3\n"),
        ("codex", 'mcp_servers = {other = {command = "x"}}\n'),
    ],
)
def test_what_cannot_be_edited_safely_is_refused_with_what_to_paste(home: Home, client: str, text: str) -> None:
    path = home.write(client, text)
    done = home.run("install", client, "--yes")
    assert done.returncode == 2
    error = json.loads(done.stderr)["error"]
    assert str(path) in error
    assert clients.NAME in error.split("Paste into it:\n")[1]
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]
    printed = home.run("install", client, "--print")
    assert printed.returncode == 0
    assert (tomllib.loads if client == "codex" else json.loads)(printed.stdout)[KEYS[client]]["holdfast"]


def test_an_entry_that_cannot_be_taken_out_safely_is_left_with_advice(home: Home) -> None:
    path = home.write("cursor", '{"mcpServers": {"holdfast": {}} // mine')
    done = home.run("uninstall", "cursor", "--yes")
    assert done.returncode == 2
    assert 'Remove "holdfast" from "mcpServers"' in json.loads(done.stderr)["error"]
    assert path.exists()


def test_project_files_are_those_of_the_folder(home: Home) -> None:
    home.do("install", "claude-code", "--project")
    home.do("install", "cursor", "--project")
    assert "holdfast" in (home.project / ".mcp.json").read_text()
    assert "holdfast" in (home.project / ".cursor/mcp.json").read_text()
    assert not home.file("claude-code").exists()
    home.do("uninstall", "claude-code", "--project")
    assert not (home.project / ".mcp.json").exists()
    done = home.run("install", "claude-desktop", "--project", "--yes")
    assert done.returncode == 2
    assert "Leave out --project." in done.stderr


PROJECT_FILES = {
    "claude-code": (".mcp.json", "."),
    "cursor": (".cursor/mcp.json", "${workspaceFolder}"),
    "codex": (".codex/config.toml", "."),
    "vscode": (".vscode/mcp.json", "${workspaceFolder}"),
}


def read_project(home: Home, client: str) -> tuple[str, dict[str, Any]]:
    text = (home.project / PROJECT_FILES[client][0]).read_text()
    read = tomllib.loads(text) if client == "codex" else json.loads(text)
    return text, read[KEYS[client]]["holdfast"]


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_project_file_has_no_path_of_this_machine(home: Home, client: str) -> None:
    home.add_program("uvx")
    folder = PROJECT_FILES[client][1]
    (home.project / "notes").mkdir()
    (beside := home.path.parent / f"{home.path.name}-beside").mkdir()
    roots = {home.project: folder, home.project / "notes": f"{folder}/notes", home.root: "~/memory"}
    for root, named in (roots | {beside: f"{folder}/../../{beside.name}"}).items():
        home.do("install", client, "--project", "--root", str(root))
        text, entry = read_project(home, client)
        words = [entry["command"], *entry["args"]]
        assert words[-4:] == ["holdfast", "mcp", "--root", named] and words[:-4] in ([], ["uvx"])
        assert str(home.path) not in text
        checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
        assert f"serves {named.replace(folder, '.').replace('~', str(home.path))}." in checks[client]["what"]
    home.do("uninstall", client, "--project")
    assert not (home.project / PROJECT_FILES[client][0]).exists()


def test_a_project_file_starts_the_program_on_the_path_if_there_is_one(home: Home) -> None:
    home.add_program("holdfast")
    home.do("install", "cursor", "--project")
    assert read_project(home, "cursor")[1]["command"] == "holdfast"


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_project_file_names_no_root_that_is_found_without_it(home: Home, client: str) -> None:
    def install(*words: str) -> list[str]:
        command = [sys.executable, "-m", "holdfast", "install", client, "--project", "--yes", *words]
        environment = {name: value for name, value in home.environment.items() if name != "HOLDFAST_ROOT"}
        subprocess.run(command, env=environment, cwd=home.project, check=True, capture_output=True, timeout=60)
        args: list[str] = read_project(home, client)[1]["args"]
        return args

    assert install()[-1] == "mcp", "the default root"
    assert (home.path / ".holdfast").is_dir()
    (home.project / "holdfast.toml").touch()
    named = PROJECT_FILES[client][1]
    found = ["mcp"] if named == "." else ["mcp", "--root", named]
    assert install()[-len(found) :] == found, "an editor may start the server in another folder"
    assert install("--root", str(home.path / ".holdfast"))[-2:] == ["--root", "~/.holdfast"]


def test_the_hooks_of_a_project_find_its_root_from_a_folder_below_it(home: Home) -> None:
    memory = home.project / "memory"
    (memory / "user/memory").mkdir(parents=True)
    (memory / "user/memory/MEMORY.md").write_text("I like tea.")
    home.add_program("uvx")
    home.do("install", "claude-code", "--project", "--hook", "--root", str(memory))
    path = home.project / ".claude/settings.json"
    assert str(home.path) not in path.read_text()
    (line,) = commands(path)
    words, _, rest = line.partition(" context --hook ")
    assert words in ("holdfast", "uvx --offline holdfast")
    (below := home.project / "below").mkdir()
    run = f"{sys.executable} -m holdfast context --hook --within 60000 {rest}"
    environment = home.environment | {"CLAUDE_PROJECT_DIR": str(home.project)}
    done = subprocess.run(
        ["/bin/sh", "-c", run], cwd=below, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "I like tea." in done.stdout
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert f"{path} serves ./memory." in checks["claude-code hook"]["what"]


def test_there_is_one_backup_of_the_file_as_it_was_before_us(home: Home) -> None:
    path = home.write("cursor", '{"theme": "dark"}')
    backup = path.with_name("mcp.json.holdfast-backup")
    for workspace in ("a", "b", "c"):
        home.do("install", "cursor", "--workspace", workspace)
        assert backup.read_text() == '{"theme": "dark"}'
    path.write_text(path.read_text().replace("dark", "light"))
    home.do("uninstall", "cursor")
    assert sorted(path.parent.iterdir()) == [path, backup], "the file has changed: it is not the old one again"
    home.do("install", "cursor")
    assert json.loads(backup.read_text()) == {"theme": "light"}
    home.do("uninstall", "cursor")
    assert list(path.parent.iterdir()) == [path]


# a team's server

URL, TOKEN = "https://memory.example.org/mcp", "a-token-of-ann"
NAMED = {"claude-code": "${HOLDFAST_TOKEN}", "cursor": "${env:HOLDFAST_TOKEN}", "vscode": "${env:HOLDFAST_TOKEN}"}


def remote(client: str, token: str) -> dict[str, Any]:
    if client == "codex":
        header = {"http_headers": {"Authorization": f"Bearer {token}"}}
        return {"url": URL} | (header if token else {"bearer_token_env_var": "HOLDFAST_TOKEN"})
    kind = {} if client == "cursor" else {"type": "http"}
    return kind | {"url": URL, "headers": {"Authorization": f"Bearer {token or NAMED[client]}"}}


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_server_of_a_team_is_added_with_its_token_or_with_the_name_of_a_variable(home: Home, client: str) -> None:
    text = 'model = "o"\n' if client == "codex" else '{"a": 1}'
    path = home.write(client, text)
    home.do("install", client, "--workspace", "alpha")
    for token in ("", TOKEN, "another", ""):
        done = home.run(
            "install", client, "--url", URL.removesuffix("/mcp"), *(["--token", token] * bool(token)), "--yes"
        )
        assert done.returncode == 0, done.stderr
        assert home.entry(client) == remote(client, token)
        assert not token or token not in done.stdout + done.stderr, "the change is shown without the token"
        assert ("HOLDFAST_TOKEN" in done.stderr) is (not token)
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert checks[client]["what"] == f"{path} connects to {URL}."
    home.do("install", client)
    assert home.entry(client)["args"][-1] == str(home.root) and "url" not in home.entry(client)
    home.do("uninstall", client)
    assert path.read_text() == text


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_token_is_not_written_into_the_file_of_a_project(home: Home, client: str) -> None:
    done = home.run("install", client, "--project", "--url", URL, "--token", TOKEN, "--yes")
    assert done.returncode == 0 and "Set HOLDFAST_TOKEN to the token" in done.stderr
    text, entry = read_project(home, client)
    assert entry == remote(client, "") and TOKEN not in text


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_file_that_gets_a_token_is_for_its_owner_only(home: Home, text: str | None) -> None:
    home.do("install", "cursor", "--project", "--url", URL)
    (home.path / ".umask").touch()
    usual = (home.path / ".umask").stat().st_mode & 0o777
    assert (home.project / ".cursor/mcp.json").stat().st_mode & 0o777 == usual
    if text:
        home.write("cursor", text)
    home.do("install", "cursor", "--url", URL, "--token", TOKEN)
    assert home.file("cursor").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("claude-desktop", "--url", URL), "Settings > Connectors"),
        (("cursor", "--url", "http://memory.example.org"), "Use --url https://memory.example.org"),
        (("cursor", "--url", "memory.example.org"), "--url https://"),
        (("cursor", "--url", "https://ann:secret@memory.example.org"), "--url https://"),
        (("cursor", "--url", "https://[memory"), "--url https://"),
        (("cursor", "--token", TOKEN), "--url https://"),
        (("cursor", "--url", URL, "--workspace", "alpha"), "Leave out --root"),
        (("claude-code", "--url", URL, "--hook"), "Leave out --root"),
        (("cursor", "--url", URL, "--root", "/tmp"), "Leave out --root"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(home: Home, words: tuple[str, ...], said: str) -> None:
    done = home.run("install", *words, "--yes")
    assert done.returncode == 2
    assert said in json.loads(done.stderr)["error"]
    assert not home.file(words[0]).exists()


def test_a_server_on_this_machine_needs_no_tls(home: Home) -> None:
    home.do("install", "vscode", "--url", "http://127.0.0.1:8899")
    assert home.entry("vscode")["url"] == "http://127.0.0.1:8899/mcp"


def test_without_a_terminal_nothing_is_written_unless_told_so(home: Home) -> None:
    done = home.run("install", "cursor", text="y\n")
    assert done.returncode == 2
    assert "--yes" in json.loads(done.stderr)["error"]
    assert "--print" in json.loads(done.stderr)["error"]
    assert not home.file("cursor").exists()
    home.run("install", "cursor", "--print")
    assert not home.file("cursor").exists()


@pytest.mark.parametrize(("said", "written"), [(b"y\n", True), (b"n\n", False)])
def test_a_terminal_sees_the_change_and_is_asked(home: Home, said: bytes, written: bool) -> None:
    token = "ghp_" + "a" * 36
    home.write("cursor", json.dumps({"mcpServers": {"other": {"env": {"T": token}}}}, indent=2))
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "install", "cursor"]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=home.environment, cwd=home.project
    )
    os.close(follower)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(leader, 65536)
    os.write(leader, said)
    assert process.wait(30) == (0 if written else 1)
    os.close(leader)
    assert b'+    "holdfast": {' in shown
    assert token.encode() not in shown
    assert ("holdfast" in home.file("cursor").read_text()) is written


def test_a_link_stays_a_link_and_its_target_is_changed(home: Home) -> None:
    target = home.path / "dotfiles.json"
    target.write_text('{"theme": "dark"}')
    home.file("claude-code").symlink_to(target)
    told = home.do("install", "claude-code")
    assert home.file("claude-code").is_symlink()
    assert "holdfast" in target.read_text()
    assert told["backup"] == f"{target}.holdfast-backup"
    home.do("uninstall", "claude-code")
    assert target.read_text() == '{"theme": "dark"}'


def test_a_root_that_is_not_there_is_refused(home: Home) -> None:
    done = home.run("install", "cursor", "--yes", "--root", str(home.path / "nowhere"))
    assert done.returncode == 9
    assert "holdfast init" in done.stderr


def test_a_file_that_may_not_be_written_is_left_as_it_is(home: Home) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    path = home.write("cursor", "{}")
    path.parent.chmod(0o500)
    try:
        assert home.run("install", "cursor", "--yes").returncode == 9
    finally:
        path.parent.chmod(0o700)
    assert path.read_text() == "{}"


def test_a_folder_in_the_place_of_the_file_is_told(home: Home) -> None:
    home.file("cursor").mkdir(parents=True)
    done = home.run("install", "cursor", "--yes")
    assert done.returncode == 9
    assert str(home.file("cursor")) in json.loads(done.stderr)["error"]


def test_what_the_client_saves_while_we_write_is_not_overwritten(home: Home) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    path = home.file("cursor")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    words = ["strace", "-f", "-o", "/dev/null", "--inject=fsync:delay_exit=1500000"]
    command = [*words, sys.executable, "-m", "holdfast", "install", "cursor", "--yes"]
    with subprocess.Popen(
        command, env=home.environment, cwd=home.project, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not list(path.parent.glob("*.holdfast-tmp-*")):
            pass
        path.write_text('{"saved": "by the client"}')
        _, printed = process.communicate(timeout=60)
    if "PTRACE" in printed:
        pytest.skip(f"strace may not trace here: {printed.strip()}")
    assert path.read_text() == '{"saved": "by the client"}'
    assert (process.returncode, "changed at the same moment" in printed) == (Conflict.exit_code, True), printed
    assert not list(path.parent.glob("*.holdfast-tmp-*"))


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("theirs")
    with pytest.raises(Conflict):
        clients.replace_file(str(path), "what we read", "ours")
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_every_platform_has_its_place(home: Home) -> None:
    desktop = CLIENTS["claude-desktop"]
    mac = desktop.location(platform="darwin")
    assert mac.endswith("Library/Application Support/Claude/claude_desktop_config.json")
    assert desktop.location(platform="linux").endswith(".config/Claude/claude_desktop_config.json")
    assert desktop.location(platform="win32").endswith("/Claude/claude_desktop_config.json")


# the hook of Claude Code

SETTINGS = ".claude/settings.json"
THEIRS = {"type": "command", "command": "echo hi"}


def commands(path: pathlib.Path, event: str = "SessionStart") -> list[str]:
    groups = json.loads(path.read_text())["hooks"][event]
    return [hook["command"] for group in groups for hook in group["hooks"]]


def test_the_hook_is_added_once_runs_is_kept_up_to_date_and_taken_back(home: Home) -> None:
    (home.root / "user/memory").mkdir(parents=True)
    (home.root / "user/memory/MEMORY.md").write_text("I like tea.")
    told = home.do("install", "claude-code", "--hook")
    path = home.path / SETTINGS
    assert (told["hook"]["file"], told["hook"]["changed"]) == (str(path), True)
    (hook,) = json.loads(path.read_text())["hooks"]["SessionStart"][0]["hooks"]
    assert (hook["type"], hook["timeout"]) == ("command", 3)
    assert hook["command"].endswith(f" context --hook --root {home.root} 2>/dev/null || true")
    for event in LATER:
        (line,) = commands(path, event)
        assert line.endswith(f" hook claude-code --root {home.root} 2>/dev/null || true")
    run = hook["command"].replace(" --hook ", " --hook --within 60000 ")
    done = subprocess.run(["/bin/sh", "-c", run], capture_output=True, text=True, input="{}", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "I like tea." in done.stdout
    before = path.read_bytes()
    assert home.do("install", "claude-code")["hook"]["changed"] is False
    assert path.read_bytes() == before
    home.do("install", "claude-code", "--workspace", "my shop")
    for event in EVENTS:
        (said,) = commands(path, event)
        assert "--workspace 'my shop' 2>" in said
    assert home.do("uninstall", "claude-code")["hook"]["changed"] is True
    assert not path.exists()
    assert not home.file("claude-code").exists()


def test_a_hook_is_only_added_when_somebody_wants_it(home: Home) -> None:
    assert "hook" not in home.do("install", "claude-code")
    assert "hook" not in home.do("install", "claude-code", "--no-hook")
    assert not (home.path / SETTINGS).exists()
    done = home.run("install", "cursor", "--hook", "--yes")
    assert done.returncode == 2
    assert "Leave out --hook." in done.stderr
    assert not home.file("cursor").exists()
    home.do("install", "claude-code", "--project", "--hook")
    assert (home.project / SETTINGS).exists()
    assert not (home.path / SETTINGS).exists()
    printed = json.loads(home.run("install", "claude-code", "--hook", "--print", "--json").stdout)
    assert list(json.loads(printed["hook"]["text"])) == ["hooks"]


def ours(root: str) -> dict[str, str]:
    later = hook_line(["/bin/holdfast", "hook", "codex", "--root", root])
    start = hook_line(["/bin/holdfast", "context", "--hook", "--root", root])
    return dict.fromkeys(EVENTS, later) | {"SessionStart": start}


def test_an_older_hook_gets_the_others_beside_it(home: Home) -> None:
    path = home.path / SETTINGS
    path.parent.mkdir()
    old = "/old/holdfast context --hook --within 1500 --root /old 2>/dev/null || true"
    path.write_text(json.dumps({"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": old}]}]}}))
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert checks["claude-code hook"]["state"] == "fail"
    assert home.do("install", "claude-code")["hook"]["changed"] is True
    assert {event: len(commands(path, event)) for event in EVENTS} == dict.fromkeys(EVENTS, 1)
    assert commands(path) != [old]


def test_codex_has_the_same_hooks_and_says_that_they_need_approval(home: Home) -> None:
    told = home.do("install", "codex", "--hook")
    path = home.path / ".codex/hooks.json"
    assert told["hook"]["file"] == str(path)
    whole = json.loads(path.read_text())
    assert (list(whole), list(whole["hooks"])) == (["hooks"], list(EVENTS)), "Codex refuses other fields"
    assert all(" hook codex --root " in commands(path, event)[0] for event in LATER)
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert (checks["codex hook"]["state"], checks["codex hook"]["next"]) == ("ok", CLIENTS["codex"].trust)
    del whole["hooks"]["Stop"]
    path.write_text(json.dumps(whole))
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert (checks["codex hook"]["state"], checks["codex hook"]["next"]) == (
        "warn",
        "Run: holdfast install codex --hook",
    )
    assert "Stop" in checks["codex hook"]["what"]
    home.do("uninstall", "codex")
    assert not path.exists()
    assert not home.file("codex").exists()


def test_hooks_that_cannot_be_read_are_named_by_uninstall_and_stay(home: Home) -> None:
    home.do("install", "codex", "--hook")
    path = home.path / ".codex/hooks.json"
    path.write_text(broken := path.read_text()[:-4])
    done = home.run("uninstall", "codex", "--yes")
    assert done.returncode != 0
    assert "hooks.json" in done.stderr + done.stdout
    assert path.read_text() == broken


HOOK_TEXTS = [
    "",
    "{}",
    '{"theme": "dark"}\n',
    '{\n  "hooks": {}\n}\n',
    '{\n\t"hooks": {\n\t\t"Stop": [\n\t\t\t{ "hooks": [] }\n\t\t]\n\t},\n\t"n": 1.0\n}',
    '{"hooks":{"SessionStart":[]},"big":12345678901234567890}',
    '{"hooks": {"SessionStart": [{"matcher": "startup", "hooks": [{"type": "command", "command": "echo é"}]}]}}',
    '{\r\n  "hooks": {\r\n    "SessionStart": [\r\n      {"hooks": [ ]}\r\n    ]\r\n  }\r\n}\r\n',
]


@pytest.mark.parametrize("text", HOOK_TEXTS)
def test_other_hooks_and_settings_come_back_byte_by_byte(home: Home, text: str) -> None:
    path = home.path / SETTINGS
    path.parent.mkdir()
    path.write_bytes(text.encode())
    told = home.do("install", "claude-code", "--hook")
    assert pathlib.Path(told["hook"]["backup"]).read_bytes() == text.encode()
    assert sum("context --hook" in each for each in commands(path)) == 1
    home.do("uninstall", "claude-code")
    assert path.read_bytes() == text.encode()


@given(
    top=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
    events=st.none() | st.dictionaries(st.sampled_from(["Stop", "SessionStart"]), st.lists(
        st.fixed_dictionaries({"hooks": st.lists(st.just(THEIRS) | st.just({}), max_size=2)}), max_size=2
    )),
    indent=st.none() | st.integers(0, 4) | st.just("\t"),
)  # fmt: skip
def test_any_settings_take_our_hook_and_give_it_back(top: dict[str, Any], events: Any, indent: Any) -> None:
    whole = top if events is None else top | {"hooks": events}
    text = json.dumps(whole, indent=indent)
    said = ours("/a b")
    merged = Hooks(said).merge(text)
    assert Hooks().find(merged) == said
    assert Hooks(said).merge(merged) == merged
    for event in EVENTS:
        assert json.loads(merged)["hooks"][event][1:] == (events or {}).get(event, [])
    assert json.loads(merged) | {"hooks": 0} == whole | {"hooks": 0}
    assert Hooks().unmerge(merged, text) == text
    changed = Hooks(ours("/c")).merge(merged)
    for event in EVENTS:
        assert json.loads(changed)["hooks"][event][0]["hooks"][0]["command"] == ours("/c")[event]


def test_what_was_added_beside_our_hook_stays() -> None:
    whole = json.loads(Hooks(ours("/r")).merge(""))
    whole["hooks"]["SessionStart"][0]["hooks"].append(THEIRS)
    left = Hooks().unmerge(json.dumps(whole), None)
    assert left is not None
    assert json.loads(left) == {"hooks": {"SessionStart": [{"hooks": [THEIRS]}]}}


@pytest.mark.parametrize("text", ['{"hooks": 3}', '{"hooks": {"SessionStart": {}}}', "{} / mine", "[]"])
def test_hooks_that_cannot_be_edited_safely_are_refused_with_what_to_paste(home: Home, text: str) -> None:
    path = home.path / SETTINGS
    path.parent.mkdir()
    path.write_text(text)
    done = home.run("install", "claude-code", "--hook", "--yes")
    assert done.returncode == 2
    assert "context --hook" in json.loads(done.stderr)["error"].split("Paste into it:\n")[1]
    assert path.read_text() == text
    assert home.run("uninstall", "claude-code", "--yes").returncode == 0
    assert path.read_text() == text


@pytest.mark.parametrize(("said", "written"), [(b"y\n", True), (b"n\n", False)])
def test_a_person_is_asked_whether_the_hook_is_wanted(home: Home, said: bytes, written: bool) -> None:
    home.do("install", "claude-code")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "install", "claude-code"]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=home.environment, cwd=home.project
    )
    os.close(follower)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(leader, 65536)
    os.write(leader, said)
    assert process.wait(30) == 0
    os.close(leader)
    assert b"Also add hooks?" in shown
    assert (home.path / SETTINGS).exists() is written


def test_doctor_looks_at_the_hook(home: Home) -> None:
    home.do("install", "claude-code", "--hook")
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert checks["claude-code hook"]["state"] == "ok"
    path = home.path / SETTINGS
    path.write_text(path.read_text().replace(str(home.root), str(home.root) + "-gone"))
    checks = {check["check"]: check for check in json.loads(home.run("doctor").stdout)["checks"]}
    assert checks["claude-code hook"]["state"] == "fail"
    assert "install claude-code --hook" in checks["claude-code hook"]["next"]


# comments and trailing commas, and the other forms of TOML

COMMENTED = [
    '{\n  // my servers\n  "KEY": {}\n}\n',
    '{\n  "KEY": {\n    // none yet\n  }\n}\n',
    "// mine\n{}\n// end",
    '/* mine */ {"a": 1} // end',
    '{"a": "// no comment, /* nor */ this,}" /* last */}',
    '{"KEY": {"other": {},},}',
    '{\n\t"KEY": {\n\t\t"other": {"command": "x",}, // theirs\n\t\t// after it\n\t},\n}\n',
    '{\n  "KEY": {\n    "other": {} // theirs, and\n    /* a longer\n       one */\n  } // end of servers\n}\n',
    '{\r\n  "KEY": {\r\n    "other": {}, // theirs\r\n  },\r\n}\r\n',
    '{"KEY": {"other": {} // theirs\n}}',
]


def read_jsonc(text: str) -> Any:
    """Read JSON with comments and trailing commas, a character at a time."""
    kept, at = "", 0
    while at < len(text):
        if text[at] == '"':
            end = json.JSONDecoder().raw_decode(text, at)[1]
            kept, at = kept + text[at:end], end
        elif text[at : at + 2] == "//":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text[at : at + 2] == "/*":
            at = text.index("*/", at) + 2
        else:
            if text[at] in "}]":
                kept = kept.rstrip().removesuffix(",")
            kept, at = kept + text[at], at + 1
    return json.loads(kept)


@pytest.mark.parametrize("text", COMMENTED)
def test_comments_and_trailing_commas_stay_and_come_back_byte_by_byte(text: str) -> None:
    text = text.replace("KEY", "servers")
    client = CLIENTS["vscode"]
    server = Server(client, client.entry(["/bin/holdfast", "mcp"]))
    merged = server.merge(text)
    assert read_jsonc(merged)["servers"]["holdfast"]["args"] == ["mcp"]
    for comment in ("my servers", "mine", "none yet", "// end", "theirs", "after it", "a longer"):
        assert (comment in merged) is (comment in text)
    assert server.merge(merged) == merged
    assert server.unmerge(merged, text) == text
    left = server.unmerge(merged, None)  # without a copy of the old text
    assert left and "holdfast" not in left
    known = read_jsonc(text)
    assert read_jsonc(left) in (known, {name: value for name, value in known.items() if value})


def test_a_file_with_comments_is_edited_by_the_commands(home: Home) -> None:
    text = '{\n  // mine\n  "servers": {\n    "other": {}, // theirs\n  },\n}\n'
    path = home.write("vscode", text)
    home.do("install", "vscode")
    merged = path.read_text()
    assert read_jsonc(merged)["servers"]["holdfast"]["args"][-1] == str(home.root)
    assert home.do("install", "vscode")["changed"] is False
    path.write_text(merged.replace("// mine", "// mine, and changed"))
    home.do("uninstall", "vscode")
    assert path.read_text() == text.replace("// mine", "// mine, and changed")


COMMENT = st.sampled_from(["", "", " ", "\n", "// c\n", "/* c */", " // a, b}\n  ", '\n/* "x */\n'])


@st.composite
def jsonc(draw: st.DrawFn, value: Any) -> str:
    """Write a value with comments, spaces and trailing commas anywhere."""
    if not isinstance(value, dict | list):
        return json.dumps(value)
    parts = [
        draw(COMMENT)
        + (f"{json.dumps(key)}{draw(COMMENT)}:{draw(COMMENT)}" if isinstance(value, dict) else "")
        + draw(jsonc(value[key] if isinstance(value, dict) else key))
        + draw(COMMENT)
        for key in value
    ]
    last = draw(st.sampled_from(["", ","])) if parts else ""
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}{','.join(parts)}{last}{draw(COMMENT)}{closed}"


@given(st.data(), st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3))
def test_any_json_with_comments_takes_our_parts_and_gives_them_back(data: st.DataObject, top: dict[str, Any]) -> None:
    whole = top | data.draw(
        st.sampled_from([{}, {"mcpServers": {}}, {"mcpServers": {"a": {}}}, {"hooks": {"Stop": []}}])
    )
    text = data.draw(COMMENT) + data.draw(jsonc(whole)) + data.draw(COMMENT)
    assert read_jsonc(text) == whole
    client = CLIENTS["cursor"]
    for part in (Server(client, client.entry(["/bin/holdfast", "mcp"])), Hooks(ours("/a b"))):
        merged = part.merge(text)
        assert part.merge(merged) == merged
        assert merged.count("c */") == text.count("c */") and merged.count("// ") == text.count("// ")
        found = read_jsonc(merged)
        assert list(part.places(merged))
        theirs = top.keys() - {"mcpServers", "hooks"}
        assert {key: found[key] for key in theirs} == {key: top[key] for key in theirs}
        assert part.unmerge(merged, text) == text
        left = part.unmerge(merged, None)
        assert left is None or {key: read_jsonc(left)[key] for key in theirs} == {key: top[key] for key in theirs}


def test_comments_inside_our_entry_and_around_it_stay_when_it_changes_and_after_it() -> None:
    text = """{
  "mcpServers": {
    "first": {}, // theirs
    // about holdfast
    "holdfast": {
      // the command
      "command": "/old", // old
      "args": ["mcp"], /* all */
      "env": {"A": "b",},
    }, // ours
    // about last
    "last": {},
  },
}
"""
    client = CLIENTS["cursor"]
    assert Server(client, client.entry(["/old", "mcp"])).merge(text) == text
    assert Server(client, client.entry(["/new", "mcp"])).merge(text) == text.replace("/old", "/new")
    left = Server(client).unmerge(text, None)
    assert left is not None
    for comment in ("// theirs", "// about holdfast", "// ours", "// about last"):
        assert comment in left
    assert "// the command" not in left
    assert read_jsonc(left) == {"mcpServers": {"first": {}, "last": {}}}


@pytest.mark.parametrize(
    "text",
    [
        '[mcp_servers]\nholdfast = {command = "/old", args = []} # mine\nother = {command = "x"}\n',
        '[mcp_servers]\nother.command = "x"\nholdfast.command = "/old" # mine\n',
        '# top\n[mcp_servers.holdfast] # mine\nargs = []\n# inside\ncommand = "/old" # it\n\n# theirs\n'
        '[mcp_servers.other]\ncommand="x"\n',
    ],
)
def test_codex_entries_of_any_form_are_changed_in_place_and_removed(text: str) -> None:
    client = CLIENTS["codex"]
    changed = Server(client, client.entry(["/new", "mcp"])).merge(text)
    read = tomllib.loads(changed)["mcp_servers"]
    assert read == {"holdfast": {"command": "/new", "args": ["mcp"]}, "other": {"command": "x"}}
    assert all(part in changed for part in ("# mine", "# top", "# inside", "# it", "# theirs") if part in text)
    left = Server(client).unmerge(changed, None)
    assert left is not None
    assert tomllib.loads(left) == {"mcp_servers": {"other": {"command": "x"}}}
    assert ("# theirs" in left, "# top" in left) == ("# theirs" in text, "# top" in text)
