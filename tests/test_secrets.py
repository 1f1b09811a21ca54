"""Secrets: what is one and what only looks like one, and that none reaches a disk through any public write."""

from __future__ import annotations

import base64
import json
import random
import re
import resource
import string
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fork_server
import holdfast
from holdfast import secrets
from holdfast.errors import HoldfastError, Invalid
from holdfast.memories.lint import lint
from holdfast.model import settings
from holdfast.model.records import Scope
from holdfast.tools import toolsets

BASE62 = string.ascii_letters + string.digits
BASE32 = string.ascii_lowercase + "234567"
HEX = "0123456789abcdef"
BASE64 = BASE62 + "+/"
URL64 = BASE62 + "_-"
CAPITALS = string.ascii_uppercase + string.digits
TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"


def some(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(count))


def pem(rng: random.Random, kind: str, lines: int = 6) -> str:
    body = "\n".join(some(rng, BASE64, 64) for _ in range(lines))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"


def web_token(rng: random.Random) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=").decode()
    body = base64.urlsafe_b64encode(json.dumps({"sub": some(rng, BASE62, 12)}).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{some(rng, URL64, 43)}"


def discord(rng: random.Random) -> str:
    account = base64.b64encode(some(rng, string.digits, 18).encode()).decode().rstrip("=")
    return f"{account}.{some(rng, URL64, 6)}.{some(rng, BASE62, 38)}"


def login(rng: random.Random) -> str:
    return base64.b64encode(f"user{rng.randrange(99)}:{some(rng, BASE62, 12)}".encode()).decode()


Made = tuple[str, str]
"""A text, and the part of it that must not be stored."""
TRUE: dict[str, Callable[[random.Random], str | Made]] = {
    "anthropic": lambda r: "sk-ant-api03-" + some(r, URL64, 93) + "AA",
    "openai project": lambda r: "sk-proj-" + some(r, URL64, 120),
    "openai service": lambda r: "sk-svcacct-" + some(r, URL64, 80),
    "openai older": lambda r: "sk-" + some(r, BASE62, 20) + "T3BlbkFJ" + some(r, BASE62, 20),
    "openrouter": lambda r: "sk-or-v1-" + some(r, HEX, 64),
    "aws access": lambda r: "AKIA" + some(r, CAPITALS[:26] + "234567", 16),
    "aws session": lambda r: "ASIA" + some(r, CAPITALS[:26] + "234567", 16),
    "aws secret": lambda r: (f"aws_secret_access_key = {(s := some(r, BASE64, 40))}", s),
    "aws secret, environment": lambda r: (f"export AWS_SECRET_ACCESS_KEY={(s := some(r, BASE64, 40))}", s),
    "aws secret, json": lambda r: (f'"SecretAccessKey": "{(s := some(r, BASE64, 40))}"', s),
    "azure storage": lambda r: (
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={(s := some(r, BASE64, 86))}==;EndpointSuffix=x", s
    ),
    "azure client": lambda r: some(r, BASE62, 3) + "8Q~" + some(r, BASE62 + "_.-", 33) + "a",
    "azure bus": lambda r: (f"SharedAccessKeyName=Root;SharedAccessKey={(s := some(r, BASE64, 43))}=", s),
    "google service account": lambda r: (
        json.dumps({"type": "service_account", "private_key": (s := pem(r, "PRIVATE KEY") + "\n")}),
        json.dumps(s)[50:110],
    ),
    "google key": lambda r: "AIza" + some(r, URL64, 35),
    "google oauth": lambda r: "GOCSPX-" + some(r, URL64, 28),
    "google access": lambda r: "ya29.a0" + some(r, URL64, 120),
    "hugging face": lambda r: "hf_" + some(r, BASE62, 34),
    "sendgrid": lambda r: f"SG.{some(r, URL64, 22)}.{some(r, URL64, 43)}",
    "twilio": lambda r: "SK" + some(r, HEX, 32),
    "twilio auth": lambda r: (f"TWILIO_AUTH_TOKEN={(s := some(r, HEX, 32))}", s),
    "telegram": lambda r: (f"{some(r, '123456789', 10)}{(s := ':AA' + some(r, URL64, 32) + 'x')}", s),
    "discord": discord,
    "discord hook": lambda r: (
        f"https://discord.com/api/webhooks/{some(r, '123456789', 18)}/{(s := some(r, BASE62, 68))}", s
    ),
    "pypi": lambda r: "pypi-AgEIcHlwaS5vcmc" + some(r, URL64, 140),
    "docker": lambda r: "dckr_pat_" + some(r, URL64, 26) + "a",
    "docker login": lambda r: (f'{{"auths": {{"index.docker.io": {{"auth": "{(s := login(r))}"}}}}}}', s),
    "vault": lambda r: "hvs." + some(r, URL64, 94) + "a",
    "digitalocean": lambda r: "dop_v1_" + some(r, HEX, 64),
    "databricks": lambda r: "dapi" + some(r, HEX, 32),
    "github": lambda r: "ghp_" + some(r, BASE62, 36),
    "github fine": lambda r: f"github_pat_{some(r, BASE62, 22)}_{some(r, BASE62, 59)}",
    "gitlab": lambda r: "glpat-" + some(r, URL64, 19) + "a",
    "slack": lambda r: f"xoxb-{some(r, string.digits, 12)}-{some(r, string.digits, 12)}-{some(r, BASE62, 24)}",
    "slack hook": lambda r: (
        f"https://hooks.slack.com/services/T{some(r, CAPITALS, 8)}/B{some(r, CAPITALS, 8)}/{(s := some(r, BASE62, 24))}", s
    ),
    "stripe": lambda r: "sk_live_" + some(r, BASE62, 24),
    "npm": lambda r: "npm_" + some(r, BASE62, 36),
    "shopify": lambda r: "shpat_" + some(r, HEX, 32),
    "groq": lambda r: "gsk_" + some(r, BASE62, 52),
    "database": lambda r: (f"postgresql://app:{(s := some(r, BASE62 + '!*-', 14))}@db.internal:5432/app", s),
    "database on a socket": lambda r: (f"postgresql://app:{(s := some(r, BASE62, 14))}@/app?host=/run/pg", s),
    "database option": lambda r: (f"postgresql://app@db/app?sslmode=require&password={(s := some(r, BASE62, 8))}", s),
    "redis": lambda r: (f"redis://:{(s := some(r, BASE62, 20))}@cache:6379/0", s),
    "web address": lambda r: (f"https://deploy:{(s := some(r, BASE62, 20))}@git.company.io/a/b.git", s),
    "basic": lambda r: (f"Authorization: Basic {(s := login(r))}", s),
    "bearer": lambda r: (f"authorization: bearer {(s := some(r, BASE62 + '._-', 40) + 'a1')}", s),
    "web token": web_token,
    "rsa": lambda r: (s := pem(r, "RSA PRIVATE KEY"), s[40:100]),
    "openssh": lambda r: (s := pem(r, "OPENSSH PRIVATE KEY"), s[45:100]),
    "pgp": lambda r: (s := pem(r, "PGP PRIVATE KEY BLOCK"), s[45:100]),
    "age": lambda r: "AGE-SECRET-KEY-1" + some(r, CAPITALS, 58),
    "env key": lambda r: (f"API_KEY={(s := some(r, BASE62, 32))}", s),
    "env key, quoted": lambda r: (f'export SERVICE_API_KEY="{(s := some(r, HEX, 40))}"', s),
    "env secret": lambda r: (f"CLIENT_SECRET={(s := some(r, BASE62 + '_-', 36))}", s),
    "env token": lambda r: (f"DEPLOY_TOKEN={(s := some(r, BASE62, 28))}", s),
    "yaml": lambda r: (f"  apiKey: {(s := some(r, BASE62, 32))}", s),
    "json": lambda r: (json.dumps({"db_password": (s := some(r, BASE62, 24))}), s),
    "escaped json": lambda r: (json.dumps(json.dumps({"api_key": (s := some(r, BASE62, 32))})), s),
    "tavily": lambda r: "tvly-dev-" + some(r, BASE62, 32),
    "voyage": lambda r: "pa-" + some(r, URL64, 42) + "a",
    "jina": lambda r: "jina_" + some(r, HEX, 32) + some(r, BASE62, 28),
    "firecrawl": lambda r: "fc-" + some(r, HEX, 32),
    "fireworks": lambda r: "fw_" + some(r, BASE62, 24),
    "together": lambda r: "tgp_v1_" + some(r, URL64, 42) + "a",
    "cerebras": lambda r: "csk-" + some(r, BASE32, 48),
    "bedrock": lambda r: "ABSK" + some(r, BASE64, 130) + "==",
    "mem0": lambda r: "m0-" + some(r, BASE62, 40),
    "supermemory": lambda r: f"sm_{some(r, BASE62, 22)}_{some(r, BASE62, 60)}",
    "composio": lambda r: "ak_" + some(r, URL64, 19) + "a",
    "modal": lambda r: "as-" + some(r, BASE62, 22),
    "e2b": lambda r: "e2b_" + some(r, HEX, 40),
    "daytona": lambda r: "dtn_" + some(r, HEX, 64),
    "browserbase": lambda r: "bb_live_" + some(r, URL64, 26) + "a",
    "vercel": lambda r: f"vercel_blob_rw_{some(r, BASE62, 16)}_{some(r, BASE62, 30)}",
    "cloudflare": lambda r: "cfut_" + some(r, BASE62, 40) + some(r, HEX, 8),
    "netlify": lambda r: "nfp_" + some(r, BASE62, 36),
    "fly": lambda r: "FlyV1 fm2_" + some(r, BASE64, 400) + "=",
    "render": lambda r: "rnd_" + some(r, BASE62, 28),
    "heroku": lambda r: "HRKU-AA" + some(r, URL64, 57) + "a",
    "neon": lambda r: "napi_" + some(r, BASE32, 64),
    "crates": lambda r: "cio" + some(r, BASE62, 32),
    "nuget": lambda r: "oy2" + some(r, BASE32, 43),
    "terraform": lambda r: f"{some(r, BASE62, 14)}.atlasv1.{some(r, BASE62, 67)}",
    "pulumi": lambda r: "pul-" + some(r, HEX, 40),
    "honeycomb": lambda r: "hcaik_" + some(r, BASE32, 58),
    "posthog": lambda r: "phx_" + some(r, BASE62, 43),
    "sourcegraph": lambda r: f"sgp_{some(r, HEX, 16)}_{some(r, HEX, 40)}",
    "airtable": lambda r: f"pat{some(r, BASE62, 14)}.{some(r, HEX, 64)}",
    "square": lambda r: "EAAA" + some(r, URL64, 59) + "a",
    "mailgun": lambda r: "key-" + some(r, HEX, 32),
    "mailchimp": lambda r: some(r, HEX, 32) + "-us21",
    "1password": lambda r: "ops_eyJ" + some(r, BASE62, 600),
    "tailscale": lambda r: f"tskey-auth-k{some(r, BASE62, 11)}CNTRL-{some(r, BASE62, 32)}",
    "sonarqube": lambda r: "sqp_" + some(r, HEX, 40),
    "artifactory": lambda r: "AKCp" + some(r, BASE62, 69),
    "contentful": lambda r: "CFPAT-" + some(r, URL64, 42) + "a",
    "prefect": lambda r: "pnu_" + some(r, BASE62, 36),
    "dropbox": lambda r: "sl.u." + some(r, URL64, 400) + "a",
    "hubspot": lambda r: f"pat-na1-{uuid.UUID(int=r.getrandbits(128))}",
    "exa": lambda r: (f"EXA_API_KEY={(s := uuid.UUID(int=r.getrandbits(128)))}", str(s)),
    "codecov": lambda r: (f'export CODECOV_TOKEN="{(s := uuid.UUID(int=r.getrandbits(128)))}"', str(s)),
    "railway": lambda r: (json.dumps({"RAILWAY_TOKEN": (s := str(uuid.UUID(int=r.getrandbits(128))))}), s),
    "holdfast": lambda r: f"hfm_{some(r, BASE32, 8)}_{some(r, BASE32, 16)}_{some(r, BASE62, 43)}",
}  # fmt: skip
AROUND = (
    "{}",
    "the key is {}, really",
    "line one\nline two\n{}\nlast line",
    "Use `{}` for the deployment.",
    "- erst\n- dann: {}\n- zuletzt",
    "Fußgängerübergänge → {} ←",
)


def true_secrets() -> Iterator[tuple[str, str, str]]:
    rng = random.Random(7)
    for name, make in TRUE.items():
        for around in AROUND:
            made = make(rng)
            whole, secret = (made, made) if isinstance(made, str) else made
            yield name, around.format(whole), secret


@pytest.mark.parametrize("name", TRUE)
def test_every_true_secret_is_found_and_taken_out(name: str) -> None:
    for _, text, secret in (each for each in true_secrets() if each[0] == name):
        assert secrets.find(text), text
        left = secrets.redact(text)
        assert secret not in left
        assert secrets.redact(left) == left, "what is redacted stays as it is"


def test_there_are_enough_true_secrets() -> None:
    assert len(list(true_secrets())) >= 300


ALIKE = (
    "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "sk-your-api-key-goes-here-please", "ghp_<your token>",
    "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "API_KEY=<your-api-key-from-the-console>",
    "API_KEY=${OPENAI_API_KEY_FROM_VAULT}", "api_key = os.environ['OPENAI_API_KEY']", "apiKey: process.env.OPENAI_API_KEY",
    "token = get_token_from_keychain(service)", "password: str | None = None", "postgresql://user:password@localhost/db",
    "postgres://app:${PGPASSWORD}@db/app", "mysql://root:<password>@127.0.0.1", "http://localhost:8080/?mail=a@b.example",
    "see http://host:3000 or write to me@host.example", '{"a":"http://x:8080","b":"c@d.example"}', "ssh://git@host:22/x.git",
    "Basic authentication is not enough", "Basic English vocabulary", "the Bearer authentication scheme of OAuth",
    "Authorization: Bearer <token>", "Authorization: Bearer YOUR_ACCESS_TOKEN_GOES_HERE", "grep -----BEGIN RSA PRIVATE KEY----- *.pem",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0123456789abcdefghij\n-----END PUBLIC KEY-----",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----", "eyJhbGciOi... is how a token begins", "eyJrindings.eyJsomething.words",
    "class='sk-folding-cube sk-cube-grid sk-circle-fade-dot'", "sk-spinner-double-bounce-animation-container",
    "primary_key: 0f9c2a7be1d34c55a6b7c8d9e0f1a2b3", "idempotency_key = 7f3c9b1e2d4a5f6c8b7a9d0e1f2c3b4a", "key: 5f2b",
    "public_key=AAAAC3NzaC1lZDI1NTE5AAAAIJ4n2Xr1cV6t8yQ", "cache-key: v2-linux-npm-0a1b2c3d4e5f6071", "token_count: 123456789012345678",
    "nextPageToken: CAUQAA9f8e7d6c5b4a39281706", "secretName: my-app-tls-2026-certificate", "SECRET_NAME=projects/x/secrets/y9",
    "tokenizer: cl100k_base_2026_large_v2", "the secret of a good sauce: patience, butter and twenty-five minutes",
    "Passwort: bitte beim Empfang erfragen", "mot de passe : demandez-le à l'accueil, s'il vous plaît", "hf_hub_download(repo_id)",
    "npm_config_cache=/tmp/cache/of/the/package/manager", "xoxb-your-token", "SG.xxxxxxxx.yyyyyyyy", "hvs.example", "dapi-docs",
    "integrity sha512-" + "A9b8C7d6E5f4" * 7 + "Ag==", "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA9k3LmZ" * 12,
    "550e8400-e29b-41d4-a716-446655440000", "request token: 550e8400-e29b-41d4-a716-446655440000", "SKU 12345-AB", "ASIA and AFRICA",
    "v1.2.3-rc.4+build.20261116.sha.5114f85", "2026-11-16T05:36:29.123456789Z", "commit 55029d7a9c3e1f0b2d4c6e8a1b3d5f7092a4c6e8",
    "https://example.com/path/to/page?utm_source=newsletter&id=9f8e7d6c5b4a39281706", "arn:aws:iam::123456789012:role/service-role/x",
    "projects/my-project/secrets/api-key/versions/3", "KeyError: 'token'", "def test_token_is_refreshed_after_401_and_kept(): ...",
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen", "anticonstitutionnellement", "MTU 1500, MDMA, NTP, OTP, MTTR",
    "SESSION_ID=550e8400-e29b-41d4-a716-446655440000", "PRIMARY_KEY=550e8400-e29b-41d4-a716-446655440000",
    "pa-linux-gnueabihf-cross-compiler-toolchain-extra", "ak_this_is_a_table_name", "key-value-store-of-the-cluster", "sm_device_count_of_this_model_name",
    "path/compatible.with.everything.else", "cioccolato-e-panna-per-tutti", "region eu-us2 and us-us1", "sl.activate(environment)",
    "12:AA and 8:AAAA", "Q~ is no key", "the sk-learn-contrib-py-earth-package-of-2019", "AIza is how they begin", "/api/webhooks/list",
)  # fmt: skip
"""Written by hand: what people write about secrets, and what only looks like one."""
PROSE = (
    "We decided to rotate every token after ninety days, because the audit asked for it.",
    "Der Schlüssel liegt im Tresor; das Passwort kennt nur die Abteilungsleitung, und sie gibt es nicht weiter.",
    "La clé d'API se trouve dans le coffre, et le jeton est renouvelé toutes les heures par le service.",
    "The secret was moved to the vault; ask the platform team for access to it.",
    "Set the API key in the environment before you start the server, never in a file.",
)


def look_alikes() -> Iterator[str]:
    rng = random.Random(11)
    makers: tuple[Callable[[], str], ...] = (
        lambda: str(uuid.UUID(int=rng.getrandbits(128))),
        lambda: f"id: {uuid.UUID(int=rng.getrandbits(128))} (of the request)",
        lambda: f"commit {some(rng, HEX, 40)}",
        lambda: f"fixed in {some(rng, HEX, 8)} and {some(rng, HEX, 12)}",
        lambda: "sha256:" + some(rng, HEX, 64),
        lambda: f'"integrity": "sha512-{some(rng, BASE64, 86)}=="',
        lambda: f'![x](data:image/png;base64,{some(rng, BASE64, rng.randrange(200, 900))}==)',
        lambda: f"https://cdn.example.net/{some(rng, HEX, 12)}/assets/app.{some(rng, BASE62, 8)}.js?v={some(rng, HEX, 16)}",
        lambda: "sk-" + "-".join(rng.choice(("fade", "cube", "grid", "dot", "bounce", "wave", "child")) for _ in range(6)),
        lambda: f"v{rng.randrange(9)}.{rng.randrange(40)}.{rng.randrange(99)}-beta.{rng.randrange(9)}+{some(rng, HEX, 7)}",
        lambda: "".join(rng.choice(("get", "User", "Token", "From", "Secret", "Store", "Async")) for _ in range(6)) + "(x)",
        lambda: "_".join(rng.choice(("token", "secret", "key", "refresh", "session", "test")) for _ in range(6)),
        lambda: f"ETag: \"{some(rng, HEX, 32)}\"",
        lambda: f"color: #{some(rng, HEX, 6)}; background: url(/img/{some(rng, HEX, 16)}.png)",
        lambda: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{some(rng, BASE64, 43)} me@host",
        lambda: f"SHA256:{some(rng, BASE64, 43)}",
        lambda: f"trace_id={some(rng, HEX, 32)} span_id={some(rng, HEX, 16)}",
        lambda: f"docker pull registry.example/app@sha256:{some(rng, HEX, 64)}",
        lambda: f"model-{rng.randrange(2020, 2030)}-{some(rng, string.digits, 8)}.safetensors",
        lambda: f"{rng.choice(PROSE)} ({some(rng, string.digits, 6)})",
        lambda: f"ghp_{'x' * rng.randrange(20, 40)}", lambda: f"sk-proj-{'x' * rng.randrange(20, 60)}",
        lambda: f"API_KEY=your-{rng.choice(('openai', 'stripe', 'github'))}-key-{rng.randrange(99)}",
        lambda: f"{rng.choice(('public', 'primary', 'cache', 'sort'))}_key: {some(rng, HEX, 32)}",
        lambda: f"key_id: {some(rng, BASE62, 20)}",
        lambda: f"password = getpass.getpass('Password {rng.randrange(99)}: ')",
        lambda: f"token={{{{ secrets.TOKEN_{rng.randrange(99)} }}}}",
        lambda: f"postgres://user:pass@localhost:{rng.randrange(1024, 9999)}/db{rng.randrange(99)}",
        lambda: f"https://host{rng.randrange(99)}.example:8443/@scope/pkg@{rng.randrange(9)}.0.0",
        lambda: " ".join(some(rng, string.ascii_lowercase, rng.randrange(3, 30)) for _ in range(12)),
        lambda: some(rng, string.digits, rng.randrange(16, 40)),
        lambda: f"order {some(rng, CAPITALS, 12)} shipped with {some(rng, CAPITALS, 18)}",
        lambda: f"| {some(rng, HEX, 10)} | {some(rng, BASE62, 11)} | {rng.random()} |",
        lambda: f"youtube.com/watch?v={some(rng, URL64, 11)}&list=PL{some(rng, URL64, 32)}",
    )  # fmt: skip
    yield from ALIKE
    yield from PROSE
    for number in range(2_100):
        yield makers[number % len(makers)]()


def test_what_only_looks_like_a_secret_is_not_refused() -> None:
    texts = list(look_alikes())
    wrong = [(text, secrets.find(text)) for text in texts if secrets.find(text)]
    assert len(texts) >= 2_000
    assert len(wrong) <= len(texts) // 100, wrong
    assert [text for text in ALIKE if secrets.find(text)] == []


# bounded work


parser: Any = vars(re)["_parser"]
constants: Any = vars(re)["_constants"]


def repeats(parsed: Any) -> Iterator[tuple[int, int, bool]]:
    """Yield every repeat of a pattern: least, most, and whether it can give back what it has read."""
    for code, value in parsed:
        if code in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            yield value[0], value[1], code is not constants.POSSESSIVE_REPEAT
            yield from repeats(value[2])
        elif code is constants.SUBPATTERN:
            yield from repeats(value[3])
        elif code is constants.BRANCH:
            for part in value[1]:
                yield from repeats(part)
        elif code in (constants.ASSERT, constants.ASSERT_NOT):
            yield from repeats(value[1])


@pytest.mark.parametrize("number", range(len(secrets.FORMATS)))
def test_a_pattern_goes_back_over_no_more_than_a_bounded_part(number: int) -> None:
    form = secrets.FORMATS[number]
    found = list(repeats(parser.parse(form.pattern)))
    assert all(most < constants.MAXREPEAT for _, most, back in found if back), form.name
    ways = 1
    for least, most, back in found:
        ways *= most - least + 1 if back else 1
    assert ways <= 10_000_000, "how often it can go back, all repeats together"


HOSTILE = ("sk-ant-", "sk-ant-xxxx", "token=", "API_KEY=", "API_KEY=aaaaaaaaaaaaaaaa1 ", "://a:b@", "://", "eyJaaaaaaaa.",
           "eyJaaaaaaaa-", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "PuTTY-User-Key-File-2:", "auths", "auths\"auth", "Bearer ",
           "Basic aaaaaaaa ", "hf_", "ghp_a", "SK", "MDMT", "AccountKey=", "12345678:AA", "x", "A1", "=", "\n", "é", "-")  # fmt: skip


def test_a_long_text_made_to_be_slow_ends_within_bounded_work() -> None:
    script = (
        "import sys; from holdfast import secrets\n"
        "for part in eval(sys.stdin.read()):\n"
        "    text = (part * (400_000 // len(part) + 1))[:400_000]\n"
        "    secrets.scan(text); secrets.redact(text[:100_000] + ' end'); secrets.find({'a': [text[:100_000]]})\n"
        "print('done')"
    )

    def limit() -> None:  # a pattern that goes back over all would take years
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))

    done = subprocess.run(
        [sys.executable, "-c", script],
        input=repr(HOSTILE),
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


# every public write


TEXTS = {"workspaceId": "w", "sessionId": "s"}
FIXED: dict[str, dict[str, Any]] = {
    "save_memory": {"compartment": "session"},
    "memory_append": {"type": "episodic"},
    "memory_compact": {"type": "episodic"},
    "save_learning": {"scope": "w", "kind": "lesson"},
    "save_skill": {"scope": "w"},
    "cron_add": {"schedule": "every 60"},
    "updateWorkspace": {"name": "w"},
}
"""Parameters that some tools need so that a call gets as far as writing."""


def filled(schema: dict[str, Any], secret: str) -> Any:
    """Return a value of a schema with the secret in every text of it."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return filled(schema["anyOf"][0], secret)
    kind = schema.get("type")
    if kind == "array":
        return [filled(schema.get("items", {}), secret)]
    if kind == "object":
        return {name: filled(part, secret) for name, part in schema.get("properties", {}).items()} or {"a": secret}
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    return True if kind == "boolean" else f"see {secret} there"


def holds(root: Path, *secrets_of: str) -> list[str]:
    """Return the files and names below a root that contain one of these, ignoring case."""
    found = []
    for path in root.rglob("*"):
        data = path.read_bytes().lower() if path.is_file() else b""
        name = str(path.relative_to(root)).lower()
        if any(each.lower().encode() in data or each.lower().replace("_", "-") in name for each in secrets_of):
            found.append(str(path))
    return found


TOOLS = [tool for tool in toolsets.registry().tools.values() if tool.name not in ("useTools", "getTools")]


@pytest.mark.parametrize("tool", [tool.name for tool in TOOLS])
def test_no_tool_lets_a_secret_reach_the_disk(root: Path, tool: str) -> None:
    chosen = next(each for each in TOOLS if each.name == tool)
    everything = {name: filled(param.schema, TOKEN) for name, param in chosen.params.items()} | FIXED.get(tool, {})
    plain = {name: filled(param.schema, "nothing") for name, param in chosen.params.items()} | FIXED.get(tool, {})
    given = [everything, *({**plain, name: everything[name]} for name in chosen.params)]
    with holdfast.open(root) as memory:
        memory.workspaces.create("w", {"description": "d", "rootFolder": ".", "purpose": "p"})
        for params in given:
            reply = memory.call(tool, params, TEXTS)
            if not chosen.reads and TOKEN in json.dumps(params):
                assert reply.get("success") is False, reply
                assert TOKEN not in json.dumps(reply)
            pair = {"context": TEXTS, "calls": [{"agent": chosen.agent, "tool": tool, "params": params}]}
            memory.call("useTools", pair)
        memory.call(
            tool, plain, {"workspaceId": "w", "sessionId": TOKEN, "goal": TOKEN, "runId": TOKEN, "agentId": TOKEN}
        )
        memory.call(tool, plain, TEXTS | {"opId": TOKEN})
        memory.call(tool, {TOKEN: 1}, {TOKEN: TOKEN})
        memory.refresh()
    assert holds(root, TOKEN) == []


def library_writes(memory: holdfast.Memory) -> Iterator[Callable[[], object]]:
    page = memory.put("note", "old", title="Old")
    entry = memory.put("lesson", "old", title="Old", scope="default")
    yield lambda: memory.put("note", f"a {TOKEN}", title="T")
    yield lambda: memory.put("note", "a", title=TOKEN)
    yield lambda: memory.put("note", "a", title="T", tags=(TOKEN,))
    yield lambda: memory.put("note", "a", title="T", fields={"x": {"y": [TOKEN]}})
    yield lambda: memory.put("note", "a", title="T", op_id=TOKEN)
    yield lambda: memory.put("rule", "a", id=f"agent/rules/common/{TOKEN}.md")
    yield lambda: memory.put("", f"new {TOKEN}", id=page.id, expect=page.version)
    yield lambda: memory.put("", id=page.id, fields={"x": TOKEN})
    yield lambda: memory.put("", f"new {TOKEN}", id=entry.id, expect=entry.version)
    yield lambda: memory.put("", id=entry.id, title=TOKEN)
    yield lambda: memory.put("decision", TOKEN, title="T", scope="default")
    yield lambda: memory.put("fact", TOKEN, fields={"key": "k"})
    yield lambda: memory.put("fact", "v", fields={"key": TOKEN})
    yield lambda: memory.put("fact", "aB3dE5fG7hJ9kL1mN3pQ", fields={"key": "db_password"})
    yield lambda: memory.put("episode", "x" * 20_000 + f" {TOKEN}", session="s")
    yield lambda: memory.put("episode", "x", session=TOKEN)
    yield lambda: memory.states.create(Scope("default"), "S", {"conversationContext": TOKEN, "activeTask": "t"})
    yield lambda: memory.chat.save_global_memory(f"Remember {TOKEN}.")
    yield lambda: memory.mind("s").append("episodic", {"a": TOKEN})
    yield lambda: memory.mind("s").append("working", {"a": [TOKEN, "x" * 20_000]})
    yield lambda: memory.mind("s").learn(key="k", value={"deep": TOKEN})
    yield lambda: memory.workspaces.create("x", {"description": "d", "rootFolder": TOKEN, "purpose": "p"})
    yield lambda: memory.jobs.add("n", f"say {TOKEN}", "every 60")
    yield lambda: memory.run("s", "r").save("run", TOKEN)
    yield lambda: memory.run(TOKEN, TOKEN).save("run", "plain")


def test_no_write_of_the_library_lets_a_secret_reach_the_disk(root: Path) -> None:
    refused = []
    with holdfast.open(root) as memory:
        for write in library_writes(memory):
            with pytest.raises(Invalid) as caught:
                write()
            refused.append(str(caught.value))
            assert TOKEN not in str(caught.value)
        memory.refresh()
        assert holds(root, TOKEN, "aB3dE5fG7hJ9kL1mN3pQ") == []
    assert holds(root, TOKEN, "aB3dE5fG7hJ9kL1mN3pQ") == []


def test_a_refusal_says_what_where_and_what_next(memory: holdfast.Memory) -> None:
    with pytest.raises(
        Invalid, match=r"\(text, line 3\) contains what looks like a secret: GitHub token\. Nothing was"
    ):
        memory.put("note", f"one\ntwo\nthree {TOKEN}", title="T")
    reply = memory.call("createState", {
        "name": "S", "conversationContext": "c", "activeTask": "t", "activeFiles": [], "nextSteps": ["a", TOKEN],
    })  # fmt: skip
    assert "(nextSteps[1], line 1)" in reply["error"]
    assert "[secrets] in holdfast.toml" in reply["error"]


def test_a_command_refuses_a_secret(root: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "put", "note", f"a {TOKEN}", "--title", "T", "--root", str(root)]
    done = fork_server.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "GitHub token" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert holds(root, TOKEN) == []


def test_chat_is_redacted(memory: holdfast.Memory, root: Path) -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": json.dumps({"api_key": "short", "q": TOKEN})}}]
    memory.chat.append_message({"role": "assistant", "content": f"it is {TOKEN}", "tool_calls": calls})
    memory.put("message", f"it is {TOKEN}", fields={"role": "user"})
    memory.chat.persist_exchange("cli", "me", TOKEN, TOKEN)
    assert "it is [GitHub token removed]" in [each.content for each in memory.chat.load_history()]
    assert holds(root, TOKEN) == []


# what the owner says


def configured(root: Path, text: str) -> holdfast.Memory:
    (root / "holdfast.toml").write_text(f"[secrets]\n{text}\n")
    return holdfast.open(root)


def test_the_owner_can_have_secrets_redacted_or_kept(root: Path) -> None:
    with configured(root, 'written = "redact"') as memory:
        made = memory.put("note", f"it is {TOKEN}", title=f"About {TOKEN}", tags=(TOKEN,), fields={"x": [TOKEN]})
        assert memory.get(made.id).text.strip() == "it is [GitHub token removed]"
        memory.put("", f"again {TOKEN}", id=made.id, expect=memory.get(made.id).version)
        entry = memory.put("lesson", f"it is {TOKEN}", title="T", scope="default")
        memory.put("", f"again {TOKEN}", id=entry.id, expect=memory.get(entry.id).version)
        memory.put("fact", TOKEN, fields={"key": "k"})
        memory.chat.save_global_memory(f"Remember {TOKEN}.")
    assert holds(root, TOKEN) == []
    with configured(root, 'written = "keep"') as memory:
        made = memory.put("note", f"it is {TOKEN}", title="T")
        assert TOKEN in memory.get(made.id).text


def test_the_owner_can_refuse_or_keep_what_was_said(root: Path) -> None:
    with configured(root, 'heard = "refuse"') as memory:
        with pytest.raises(Invalid, match="GitHub token"):
            memory.chat.append_message({"role": "user", "content": TOKEN})
        memory.call("recall", {"query": TOKEN})  # a trace is not refused: no caller waits for it
        assert memory.traces.last(1)[0]["tool"] == "recall"
    assert holds(root, TOKEN) == []
    with configured(root, 'heard = "keep"') as memory:
        memory.chat.append_message({"role": "user", "content": TOKEN})
        assert [each.content for each in memory.chat.load_history()] == [TOKEN]


def test_the_owner_can_allow_a_format_by_its_name(root: Path) -> None:
    with configured(root, 'allow = ["GitHub token"]') as memory:
        memory.put("note", f"it is {TOKEN}", title="T")
        with pytest.raises(Invalid, match="npm token"):
            memory.put("note", "npm_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", title="U")
    with pytest.raises(Invalid, match=r'"GitHub tokn".*Did you mean "GitHub token"'):
        configured(root, 'allow = ["GitHub tokn"]')
    assert settings.load("", {"HOLDFAST_SECRETS_WRITTEN": "keep"}).secrets.written == "keep"


# what a person wrote


def test_what_a_person_wrote_stays_and_lint_names_it(memory: holdfast.Memory, root: Path) -> None:
    page = root / "resources/workspaces/w/_plans/260101-x.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"---\nname: X\ndescription: d\nstatus: new\ncreated: 2026-01-01\n---\n\nThe key is {TOKEN}.\n")
    (page.parent.parent / "OVERVIEW.md").write_text("---\nname: w\ndescription: d\n---\n")
    reply = memory.call("set_plan_status", {"path": page.relative_to(root).as_posix(), "status": "done"})
    assert reply.get("success") is not False
    record = memory.get(page.relative_to(root).as_posix())
    memory.put("", record.text + "\nOne more line.\n", id=record.id, expect=record.version)
    assert TOKEN in page.read_text()
    with pytest.raises(HoldfastError, match="npm token"):
        memory.put(
            "", "npm_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", id=record.id, expect=memory.get(record.id).version
        )
    told = [fault for fault in lint(memory).faults if fault.rule == "secret"]
    assert [(fault.path, fault.line) for fault in told] == [(record.id, 9)]
    assert "GitHub token" in told[0].what
    assert TOKEN not in str(told[0])
