"""Find secrets in text by their known formats, before the text reaches a disk or a log.

Only formats are recognised: a password in a sentence is not found, and placeholders of documentation are no secrets.
Nothing is sent anywhere. `marked` is a fast check that nearly every text passes; a pattern is tried only where one of
its marks is. No pattern can backtrack without a bound, so the work grows linearly with the text.
"""

from __future__ import annotations

import binascii
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.model.patterns import regex


class Secret(msgspec.Struct, frozen=True):
    """A secret at `text[start:end]`; `line` counts from 1."""

    name: str
    start: int
    end: int
    line: int


class Format(msgspec.Struct, frozen=True):
    """One format of secrets.

    `pattern` is tried where a text contains one of the marks; its group `s`, or the whole match, is the secret.
    """

    name: str
    marks: tuple[str, ...]
    pattern: str
    check: Callable[[re.Match[str]], bool]
    lead: int = 0
    """How many characters before the mark belong to the secret."""


_PLACEHOLDER = regex(
    r"(?i)x{4}|\*{3}|\.\.\.|…|example|your|placeholder|redacted|removed|changeme|change[-_]me|dummy|[<>{}]"
)
_UUID = regex(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
_HEX = regex(r"[0-9a-f]{32,128}\Z")
_PIECE = regex(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_KEY_BODY = regex(r"[A-Za-z0-9+/]{40}")
_COMMON_PASSWORDS = frozenset(
    "pass password passwd passwort pwd secret user username postgres root admin test token apikey pass1234".split()
)
_PORTION = 128
"""How many characters of a possible secret are examined."""


def _real(found: re.Match[str]) -> bool:
    """Not a placeholder."""
    return not _PLACEHOLDER.search(found["s"][:_PORTION])


def _random(found: re.Match[str]) -> bool:
    return _real(found) and _is_random(found["s"])


def _is_random(text: str) -> bool:
    """Check that a text consists of pieces shorter than words, unlike names and numbers."""
    pieces = _PIECE.findall(text[:_PORTION])
    average = sum(map(len, pieces)) / max(1, len(pieces))
    most = 5.0 if _HEX.match(text.rpartition("-")[2]) else 3.7 if any(piece.isdigit() for piece in pieces) else 2.6
    return len(pieces) > 3 and average <= most


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return b""


def _login(found: re.Match[str]) -> bool:
    """Base64 of `name:password`."""
    name, colon, password = _decoded(found["s"].rstrip("=")).partition(b":")
    return bool(colon and name and password and (name + password).isascii() and b"\0" not in name + password)


def _web_token(found: re.Match[str]) -> bool:
    head = _decoded(found["s"].partition(".")[0])
    return head[:1] == b"{" and (b'"alg"' in head or b'"enc"' in head)


def _has_key(found: re.Match[str]) -> bool:
    return _KEY_BODY.search(found["s"]) is not None


def _password(found: re.Match[str]) -> bool:
    given = found["s"]
    return given.casefold() not in _COMMON_PASSWORDS and not given.startswith(("$", "%")) and _real(found)


_KEY_BEFORE = regex(
    r"(?i)(?:api|access|secret|private|auth|encryption|signing|master|account|service|client|app|admin|deploy|"
    r"licen[cs]e)[ _-]?\Z"
)
_KEY_IN_ENVIRONMENT = regex(r"[A-Z0-9]_\Z")
_HARMLESS_BEFORE = regex(
    r"(?i)(?:public|pub|primary|foreign|cache|sort|partition|idempotency|dedup|lookup|object|routing|group|index|host|next|"
    r"page|sync|continuation|cursor|tracking|issue|project|state|pad|eos|bos|row|range|composite|translation)[ _-]?\Z"
)
_HARMLESS_AFTER = regex(
    r"(?i)(?:id|ids|name|type|ur[il]|count|counts|path|file|vault|length|limit|expiry|expires|izer|izers|ref|version|"
    r"algorithm|format|rotation|hint|policy)\Z"
)
_HASH = regex(r"(?i)(?:sha(?:1|256|384|512)|md5|blake2b)[-:]")


def _assigned(found: re.Match[str]) -> bool:
    """The value of a setting that is named after a secret, and that looks like one."""
    at, word = found.start("name"), found["name"]
    before = found.string[max(0, at - 24) : at]
    if _HARMLESS_BEFORE.search(before) or _HARMLESS_AFTER.search(found["rest"]):
        return False
    environment = word.isupper() and _KEY_IN_ENVIRONMENT.search(before)
    if word.casefold() == "key" and not (environment or _KEY_BEFORE.search(before)):
        return False
    return _is_value(found["s"], variable=bool(environment))


def _is_value(value: str, *, variable: bool = False) -> bool:
    """Check that the value of a field that is named after a secret looks like one; of a variable, a UUID does too."""
    if value.startswith(("/", "./", "$", "%", "#")) or _UUID.match(value) or _HASH.match(value):
        return variable and _UUID.match(value) is not None
    return len(value) > 15 and not _PLACEHOLDER.search(value[:_PORTION]) and _is_random(value)


_NOT_INSIDE, _NOT_IN_WORD, _END = r"(?<![A-Za-z0-9_-])", r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9_-])"
_A, _U, _H = "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[a-f0-9]"
_OPEN = r"\\?[\"'`]?"
_VALUE = (
    _OPEN + r"[ \t]{0,4}(?:=>|:=|==|=|:)[ \t]{0,4}" + _OPEN + r"(?P<s>[A-Za-z0-9+/_.~!@#$%^*-]{16,512}+={0,2})(?!\()"
)
_SECRET_NAMES = ("secret", "token", "passw", "passphrase", "pwd", "credential")
_KEYS = ("_key", "_KEY", "-key", "-Key", "-KEY", "piKey", "pikey", "PIKEY", "sKey", "eKey", "tKey", "tKEY", "hKey",
         "pi key", "PI key", "PI Key", "ss key", "ret key")  # fmt: skip

_PREFIXES: tuple[tuple[Any, ...], ...] = (
    ("Anthropic key", "sk-ant-", _U + "{20,512}+"), ("OpenAI key", "sk-proj- sk-svcacct- sk-admin-", _U + "{20,512}+"),
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", _A + "{36,255}+"), ("Google API key", "AIza", r"[0-9A-Za-z_-]{35}"),
    ("GitHub token", "github_pat_", r"[A-Za-z0-9_]{22,255}+"), ("Google OAuth secret", "GOCSPX-", _U + "{20,64}+"),
    ("GitLab token", "glpat- gldt- glrt- glcbt- glptt- glft- glagent-", _U + "{20,255}+"),
    ("Slack token", "xoxa- xoxb- xoxe- xoxp- xoxo- xoxs- xoxr- xapp-", r"[A-Za-z0-9-]{10,512}+"),
    ("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", _A + "{16,255}+"), ("E2B key", "e2b_", _H + "{40}"),
    ("Google access token", "ya29.", r"[A-Za-z0-9_.-]{20,512}+"), ("npm token", "npm_", _A + "{36}" + _END),
    ("PyPI token", "pypi-AgE", _U + "{20,512}+"), ("Hugging Face token", "hf_ api_org_", _A + "{30,64}+" + _END),
    ("Holdfast token", "hfm_", r"[a-z2-7]{0,400}_[a-z2-7]{16}_[A-Za-z0-9_-]{43}"), ("Daytona key", "dtn_", _H + "{64}"),
    ("SendGrid key", "SG.", r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"), ("Groq key", "gsk_", _A + "{40,64}+"),
    ("Docker token", "dckr_pat_ dckr_oat_", _U + "{20,255}+"), ("Vault token", "hvs. hvb. hvr.", _U + "{20,512}+"),
    ("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", _H + "{64}"), ("xAI key", "xai-", _A + "{40,128}+"),
    ("Databricks token", "dapi", r"[a-f0-9]{32}(?:-[0-9])?" + _END), ("Perplexity key", "pplx-", _A + "{40,64}+"),
    ("Shopify token", "shpat_ shpss_ shpca_ shppa_", r"[a-fA-F0-9]{32}"), ("Replicate token", "r8_", _A + "{37,64}+"),
    ("NVIDIA key", "nvapi-", _U + "{40,128}+"), ("LangSmith key", "lsv2_pt_ lsv2_sk_", r"[a-f0-9_]{32,64}+"),
    ("Pinecone key", "pcsk_", r"[A-Za-z0-9_]{40,128}+"), ("Linear key", "lin_api_", _A + "{32,64}+"),
    ("Notion token", "ntn_", _A + "{40,64}+"), ("Figma token", "figd_", _U + "{36,64}+"),
    ("Postman key", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}"), ("New Relic key", "NRAK-", r"[A-Z0-9]{27}"),
    ("Grafana token", "glsa_ glc_", r"[A-Za-z0-9_=+/]{32,512}+"), ("RubyGems key", "rubygems_", _H + "{48}"),
    ("Supabase token", "sbp_ sb_secret_", r"[A-Za-z0-9_]{30,64}+"), ("age key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    ("Sentry token", "sntrys_ sntryu_", r"[A-Za-z0-9_=+/]{40,512}+"), ("Render key", "rnd_", _A + "{28,40}+" + _END),
    ("Doppler token", "dp.pt. dp.st.", r"[A-Za-z0-9_.-]{40,128}+"), ("Firecrawl key", "fc-", _H + "{32}" + _END),
    ("Atlassian token", "ATATT3 ATCTT3", r"[A-Za-z0-9_=-]{60,512}+"), ("Cerebras key", "csk-", "[a-z0-9]{48}" + _END),
    ("PlanetScale token", "pscale_tkn_ pscale_pw_", r"[A-Za-z0-9_.-]{32,64}+"), ("Mem0 key", "m0-", _A + "{40}" + _END),
    ("Netlify token", "nfp_ nfc_ nfo_ nfu_ nfb_", _A + "{36}" + _END), ("Tavily key", "tvly-", r"[A-Za-z0-9-]{32,64}+"),
    ("HubSpot token", "pat-na1- pat-na2- pat-eu1- pat-ap1-", _H + "{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}"),
    ("Vercel token", "vercel_blob_rw_", _A + "{16}_" + _A + "{30,40}+"), ("NuGet key", "oy2", "[a-z0-9]{43}" + _END),
    ("Sourcegraph token", "sgp_", "(?:[a-z0-9]{5,16}_)?" + _H + "{40}"), ("Contentful token", "CFPAT-", _U + "{43}"),
    ("1Password token", "ops_eyJ", "[A-Za-z0-9+/_-]{200,4000}+={0,2}"), ("Prefect key", "pnu_ pnb_", _A + "{36}"),
    ("Amazon Bedrock key", "ABSK", r"[A-Za-z0-9+/]{100,300}+={0,2}"), ("Fireworks key", "fw_", _A + "{22,40}+" + _END),
    ("Tailscale key", "tskey-", "[a-z]{3,10}-[A-Za-z0-9-]{20,80}+"), ("SonarQube token", "sqp_ squ_ sqa_", _H + "{40}"),
    ("Supermemory key", "sm_", _A + "{16,40}_" + _U + "{32,128}+"), ("Voyage key", "pa-", _U + "{43}" + _END, _random),
    ("Cloudflare token", "cfut_ cfat_ cfk_", _U + "{40,64}+"), ("Fly token", "fm2_", "[A-Za-z0-9+/]{100,2000}+={0,2}"),
    ("Honeycomb key", "hcaik_ hcbik_ hcaic_", "[a-z0-9]{58}"), ("Airtable token", "pat", _A + r"{14}\." + _H + "{64}"),
    ("Modal token", "ak- as-", _A + "{22}" + _END, _random), ("crates.io token", "cio", _A + "{32}" + _END, _random),
    ("Composio key", "ak_", _U + "{20}" + _END, _random), ("Browserbase key", "bb_live_", _U + "{24,40}+"),
    ("Dropbox token", "sl. sl.u.", _U + "{120,2000}+"), ("Together key", "tgp_v1_", _U + "{43}"),
    ("PostHog key", "phx_", _A + "{40,64}+"), ("Heroku key", "HRKU-", _U + "{36,64}+"),
    ("Artifactory key", "AKCp", _A + "{69}"), ("Jina key", "jina_", _U + "{50,64}+"),
    ("Neon key", "napi_", "[a-z0-9]{64}"), ("Pulumi token", "pul-", _H + "{40}"),
)  # fmt: skip
"""Tokens that begin with the name of their issuer: name, beginnings, rest, and a check for common beginnings."""

_OTHERS = (
    ("private key", ("-----BEGIN ",), r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+"
     r"(?:-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----)?", _has_key),
    ("private key", ("PuTTY-User-Key-File-",), r"PuTTY-User-Key-File-[23]:(?:[^P]|P(?!rivate-Lines)){0,2000}+"
     r"Private-Lines: [0-9]{1,4}\s{1,4}(?:[A-Za-z0-9+/=]{1,80}\s{1,4}){1,200}", _has_key),
    ("AWS access key", ("AKIA", "ASIA", "ABIA", "ACCA"),
     _NOT_IN_WORD + r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}(?![A-Za-z0-9])", _real),
    ("AWS secret key",
     ("ecret_access_key", "ECRET_ACCESS_KEY", "ecretAccessKey", "ecret access key", "ecret Access Key"),
     r"(?i:ecret[_ ]?access[_ ]?key)" + _OPEN + r"\s{0,4}(?:=>|:=|=|:|is|>)\s{0,4}" + _OPEN
     + r"(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])", _real),
    ("Azure storage key", ("AccountKey=", "SharedAccessKey="),
     r"(?:AccountKey|SharedAccessKey)=(?P<s>[A-Za-z0-9+/]{42,86}={0,2})", _random),
    ("Azure client secret", ("Q~",),
     r"(?<=[A-Za-z0-9_~.-]{3}[0-9])Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])", _real, 4),
    ("Azure SAS signature", ("sig=",), r"(?<=[?&])sig=(?P<s>[A-Za-z0-9%+/]{43,100}(?:%3[Dd]|=))", _random),
    ("Square token", ("EAAA",), r"(?<![A-Za-z0-9+/_=-])EAAA[A-Za-z0-9_-]{60}(?![A-Za-z0-9+/_=-])", _random),
    ("Mailgun key", ("key-",), _NOT_INSIDE + r"key-[0-9a-f]{32}" + _END, _real),
    ("Mailchimp key", ("-us",), r"(?<=[0-9a-f]{32})-us[0-9]{1,2}" + _END, _real, 32),
    ("Terraform token", (".atlasv1.",), r"(?<=[A-Za-z0-9]{14})\.atlasv1\.[A-Za-z0-9_-]{60,80}+", _real, 14),
    ("Twilio key", ("SK",), _NOT_INSIDE + r"SK[0-9a-f]{32}" + _END, _real),
    ("Telegram bot token", (":AA",), r"(?<=[0-9]{8}):AA[A-Za-z0-9_-]{32,33}" + _END, _real),
    ("Discord bot token", tuple(first + second for first in "MNO" for second in "DTjz"),
     _NOT_INSIDE + r"[MNO][DTjz][A-Za-z0-9_-]{21,26}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}" + _END, _random),
    ("web hook", ("hooks.slack.com/services/", "/api/webhooks/"),
     r"(?:hooks\.slack\.com/services|/api/webhooks)/(?P<s>[A-Za-z0-9]{8,24}/(?:[A-Za-z0-9]{8,14}/)?"
     r"[A-Za-z0-9_-]{20,100}+)", _random),
    ("Docker login", ("auths",),
     r"auths[^@]{0,300}?\"auth\\?\"\s{0,4}:\s{0,4}\\?\"(?P<s>[A-Za-z0-9+/]{8,512}+={0,2})", _login),
    ("JSON web token", ("eyJ",),
     _NOT_INSIDE + r"eyJ[A-Za-z0-9_-]{8,4096}+\.eyJ[A-Za-z0-9_-]{8,16384}+\.[A-Za-z0-9_-]{8,4096}+", _web_token),
    ("password in an address", ("://",),
     r"://[^\s/:@?#\"'<>\\]{0,256}+:(?P<s>[^\s/?#\"'<>\\]{4,256})@(?=[A-Za-z0-9\[_%{$/-])", _password),
    ("password in an address", ("://",),
     r"(?:(?<=postgresql)|(?<=postgres))://[^\s\"'<>\\]{0,256}?[?&](?:ssl)?password="
     r"(?P<s>[^\s\[&#\"'<>\\]{4,256}+)", _password),
    ("bearer token", ("earer ", "EARER "), r"(?i:earer) {1,4}(?P<s>[A-Za-z0-9._~+/-]{16,4096}+=*+)", _random),
    ("basic login", ("asic ", "ASIC "), r"(?i:asic) {1,4}(?P<s>[A-Za-z0-9+/]{8,4096}+={0,2})", _login),
    ("API key", ("sk-",), _NOT_INSIDE + r"sk-[A-Za-z0-9_-]{20,512}+", _random),
    ("assigned secret", tuple(form for word in _SECRET_NAMES for form in (word, word.capitalize(), word.upper())),
     r"(?P<name>(?i:secret|token|passw(?:or)?d|passphrase|pwd|credential))(?P<rest>[A-Za-z0-9_-]{0,24})" + _VALUE,
     _assigned),
    ("assigned key", _KEYS,
     r"(?i:[ _-]|pi|s|e|t|h|ss |ret |pi )(?=(?i:key))(?P<name>(?i:key))(?P<rest>[A-Za-z0-9_-]{0,24})" + _VALUE,
     _assigned),
)  # fmt: skip


FORMATS = (
    *(
        Format(name, tuple(heads.split()), f"{_NOT_IN_WORD}(?:{'|'.join(map(re.escape, heads.split()))}){rest}", *check)
        for name, heads, rest, *check in ((*row, _real)[:4] for row in _PREFIXES)
    ),
    *(Format(*row) for row in _OTHERS),
)
"""All formats; where two match, the earlier one names the secret."""
NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))
REMOVED = "[{} removed]"
_SECRET_FIELD = regex(
    r"(?i)(?:pass(?:word|wd|phrase)|secret|token|pwd|(?:api|access|private|secret)[ _-]?key|"
    r"authorization|credentials?)\Z"
)

_SHORT = ("://", "asic ", "ASIC ", "auths", "-----BEGIN ", "PuTTY-User")
"""Marks of secrets that may be short or far from the mark; all other secrets are in long words."""
_NAMING = ("ecret", "ECRET", "oken", "OKEN", "assw", "ASSW", "phrase", "PHRASE", "pwd", "Pwd", "PWD", "redential",
           "REDENTIAL", "key", "Key", "KEY", "earer ", "EARER ")  # fmt: skip
"""Words that name a secret before it follows."""
_SHORTEST = 8
"""Characters of the shortest secret."""
_LONG = 15
"""Characters of the shortest word that contains a secret."""
_LONG_WORD = regex(rf"(?<!\S)\S{{{_LONG},}}")


def _alternatives(marks: Collection[str]) -> str:
    """Return a pattern for any of these texts that examines no character twice."""
    if "" in marks:
        return ""
    following: dict[str, set[str]] = {}
    for mark in sorted(marks):
        following.setdefault(mark[0], set()).add(mark[1:])
    return f"(?:{'|'.join(re.escape(first) + _alternatives(rest) for first, rest in following.items())})"


@functools.cache
def _marks(*, inside: bool) -> re.Pattern[str]:
    """Return the pattern of all marks of one sort; compiled on first use.

    Marks `inside` are part of a long word, the secret itself. The others can be anywhere in a text.
    """
    other = (*_NAMING, *_SHORT)
    marks = {mark for form in FORMATS for mark in form.marks if inside != any(name in mark for name in other)}
    return re.compile(_alternatives(marks))


def _places(text: str) -> Iterator[int]:
    """Yield all places of a text where a mark starts."""
    words = ((_marks(inside=True), *word.span()) for word in _LONG_WORD.finditer(text))
    for pattern, start, end in itertools.chain([(_marks(inside=False), 0, len(text))], words):
        while found := pattern.search(text, start, end):
            yield (start := found.start())
            start += 1  # marks may overlap


@functools.cache
def _ranks() -> Mapping[str, list[tuple[str, int]]]:
    """Return the marks, each with the rank of its format, by their first two characters."""
    found: dict[str, list[tuple[str, int]]] = {}
    for rank, form in enumerate(FORMATS):
        for mark in form.marks:
            found.setdefault(mark[:2], []).append((mark, rank))
    return found


@functools.cache
def _pattern(rank: int) -> re.Pattern[str]:
    pattern = FORMATS[rank].pattern
    return re.compile(pattern if "(?P<s>" in pattern else f"(?P<s>{pattern})")


@functools.lru_cache(maxsize=4096)
def _secret_field(name: object) -> bool:
    return _SECRET_FIELD.search(str(name)) is not None


def marked(value: Any, shortest: int = _SHORTEST) -> bool:
    """Check whether a JSON value could contain a secret; False is certain, and the usual result.

    `shortest` is the length from which the value of a field that is named after a secret counts.
    """
    texts: list[str] = []
    waiting: list[Any] = [(value,)]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, list | tuple):  # a mapping
            texts += [name for name in item if isinstance(name, str)]
            for name, part in item.items():
                if isinstance(part, str) and len(part) >= shortest and _secret_field(name):
                    return True
            item = item.values()
        for part in item:
            if isinstance(part, str):
                texts.append(part)
            elif part and isinstance(part, list | tuple | dict | Mapping):
                waiting.append(part)
    text = "\n".join(texts)
    for mark in _SHORT:
        if mark in text:
            return True
    words = [word for word in text.split() if len(word) >= _LONG]
    return bool(words) and (any(map(text.__contains__, _NAMING)) or any(map(_marks(inside=True).search, words)))


def scan(text: str, allow: Collection[str] = ()) -> list[Secret]:
    """Return the secrets in a text, in order and without overlaps; `allow` names formats to ignore."""
    if len(text) < _SHORTEST or not marked(text):
        return []
    spans: list[tuple[int, int, int]] = []
    tried, done = [0] * len(FORMATS), [0] * len(FORMATS)  # of each format: how far
    for at in sorted(_places(text)):
        for mark, rank in _ranks()[text[at : at + 2]]:
            form = FORMATS[rank]
            if at < tried[rank] or form.name in allow or not text.startswith(mark, at):
                continue
            tried[rank] = at + len(mark)
            found = _pattern(rank).match(text, at) if at >= done[rank] else None
            if found and form.check(found):
                done[rank] = found.end()
                spans.append((found.start("s") - form.lead, found.end("s"), rank))
    joined: list[tuple[int, int, int]] = []
    for start, end, rank in sorted(spans):
        if joined and start < joined[-1][1]:
            first, last, before = joined[-1]
            joined[-1] = (first, max(last, end), min(rank, before))
        else:
            joined.append((start, end, rank))
    line, counted, result = 1, 0, []
    for start, end, rank in joined:
        line, counted = line + text.count("\n", counted, start), start
        result.append(Secret(FORMATS[rank].name, start, end, line))
    return result


def redact(text: str, allow: Collection[str] = ()) -> str:
    """Replace every known secret in a text with its name."""
    return without(text, scan(text, allow))


def without(text: str, found: Collection[Secret]) -> str:
    """Replace these secrets in a text with their names."""
    parts, at = [], 0
    for secret in found:
        parts += [text[at : secret.start], REMOVED.format(secret.name)]
        at = secret.end
    return "".join((*parts, text[at:]))


def find(value: Any, allow: Collection[str] = (), where: str = "") -> tuple[str, str] | None:
    """Return the name and the place, like `steps[2], line 3`, of the first secret in a JSON value."""
    if isinstance(value, str):
        if not (found := scan(value, allow)):
            return None
        return found[0].name, f"{where}, line {found[0].line}".removeprefix(", ")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            inside = f"{where}.{name}" if where else str(name)
            if (secret := find(str(name), allow, "a name")) or (secret := find(inner, allow, inside)):
                return secret
            variable = isinstance(name, str) and name.isupper()
            named = isinstance(inner, str) and _secret_field(name) and _is_value(inner.strip(), variable=variable)
            if named and "assigned secret" not in allow:
                return "assigned secret", inside
    if isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if secret := find(inner, allow, f"{where}[{number}]"):
                return secret
    return None


def redact_all(value: Any, allow: Collection[str] = (), *, named: bool = True) -> Any:
    """Redact every text in a JSON value, and the values of fields that are named after a secret.

    Without `named`, such a value is redacted only if it looks like a secret.
    """
    if isinstance(value, str):
        return redact(value, allow)
    if not marked(value, 1):
        return value
    if isinstance(value, Mapping):
        made = {}
        for name, inner in value.items():
            secret = isinstance(inner, str) and inner and _secret_field(name) and (named or _is_value(inner.strip()))
            key = redact(name, allow) if isinstance(name, str) else name
            made[key] = "[removed]" if secret else redact_all(inner, allow, named=named)
        return made
    return [redact_all(inner, allow, named=named) for inner in value]
