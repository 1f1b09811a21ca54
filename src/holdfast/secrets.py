"""Finding secrets in text by their known formats, before the text reaches a disk or a log.

Formats only: what has no form of its own (a password in a sentence) is not found, and nothing is sent anywhere. A text
is looked through for marks first, which nearly no text has; only where a mark stands is a pattern tried. No pattern
can go back over what it has read, or only over a bounded part of it: the work grows with the text and no faster.
Placeholders of documentation are no secrets.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec


class Secret(msgspec.Struct, frozen=True):
    """What was found, and where: `start` and `end` are places in the text, `line` counts from 1."""

    name: str
    start: int
    end: int
    line: int


class Format(msgspec.Struct, frozen=True):
    """One form of secrets: what a text must hold to have one, and what it looks like from there on."""

    name: str
    marks: tuple[str, ...]
    pattern: str
    """Tried where a mark stands; the group `s` is the secret, without it all that was matched."""
    check: Callable[[re.Match[str]], bool]
    lead: int = 0
    """How many characters before its mark belong to it."""


_PLACEHOLDER = re.compile(
    r"(?i)x{4}|\*{3}|\.\.\.|…|example|your|placeholder|redacted|removed|changeme|change[-_]me|dummy|[<>{}]"
)
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")
_HEX = re.compile(r"[0-9a-f]{32,128}\Z")
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_PORTION = 128
"""How much of a text that looks like a secret is judged."""


def _no_placeholder(found: re.Match[str]) -> bool:
    return not _PLACEHOLDER.search(_secret(found)[:_PORTION])


def _random_one(found: re.Match[str]) -> bool:
    return _no_placeholder(found) and _is_random(_secret(found))


def _secret(found: re.Match[str]) -> str:
    return found["s"] if "s" in found.re.groupindex else found[0]


def _is_random(text: str) -> bool:
    """Is a text made of pieces shorter than words: one capital, some letters, a number? No name or number is."""
    pieces = _PIECE.findall(text[:_PORTION])
    share = sum(map(len, pieces)) / max(1, len(pieces))
    most = 5.0 if _HEX.match(text.rpartition("-")[2]) else 3.7 if any(piece.isdigit() for piece in pieces) else 2.6
    return len(pieces) > 3 and share <= most


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _names_and_password(found: re.Match[str]) -> bool:
    name, colon, password = _decoded(found["s"].rstrip("=")).partition(b":")
    return bool(colon and name and password and (name + password).isascii() and b"\0" not in name + password)


def _web_token(found: re.Match[str]) -> bool:
    head = _decoded(found[0].partition(".")[0])
    return head[:1] == b"{" and (b'"alg"' in head or b'"enc"' in head)


_BODY = re.compile(r"[A-Za-z0-9+/]{40}")


def _has_key(found: re.Match[str]) -> bool:
    return _BODY.search(found[0]) is not None


_COMMON_PASSWORDS = frozenset(
    "pass password passwd passwort pwd secret user username postgres root admin test token apikey pass1234".split()
)


def _password(found: re.Match[str]) -> bool:
    given = found["s"]
    return given.casefold() not in _COMMON_PASSWORDS and not given.startswith(("$", "%")) and _no_placeholder(found)


_KEY_BEFORE = re.compile(
    r"(?i)(?:api|access|secret|private|auth|encryption|signing|master|account|service|client|app|admin|deploy|"
    r"licen[cs]e)[ _-]?\Z"
)
_KEY_IN_ENVIRONMENT = re.compile(r"[A-Z0-9]_\Z")
_HARMLESS_BEFORE = re.compile(
    r"(?i)(?:public|pub|primary|foreign|cache|sort|partition|idempotency|dedup|lookup|object|routing|group|index|host|next|"
    r"page|sync|continuation|cursor|tracking|issue|project|state|pad|eos|bos|row|range|composite|translation)[ _-]?\Z"
)
_HARMLESS_AFTER = re.compile(
    r"(?i)(?:id|ids|name|type|ur[il]|count|counts|path|file|vault|length|limit|expiry|expires|izer|izers|ref|version|"
    r"algorithm|format|rotation|hint|policy)\Z"
)
_HASH = re.compile(r"(?i)(?:sha(?:1|256|384|512)|md5|blake2b)[-:]")


def _assigned(found: re.Match[str]) -> bool:
    """Is this the value of a setting that is named after a secret, and looks like one?"""
    at = found.start("name")
    before = found.string[max(0, at - 24) : at]
    word, value = found["name"], found["s"]
    if _HARMLESS_BEFORE.search(before) or _HARMLESS_AFTER.search(found["rest"]):
        return False
    if word.casefold() == "key" and not (
        _KEY_BEFORE.search(before) or (word == "KEY" and _KEY_IN_ENVIRONMENT.search(before))
    ):
        return False
    return _is_value(value)


def _is_value(value: str) -> bool:
    """Does the value of something that is named after a secret look like one?"""
    if value.startswith(("/", "./", "$", "%", "#")) or _UUID.match(value) or _HASH.match(value):
        return False
    return len(value) > 15 and not _PLACEHOLDER.search(value[:_PORTION]) and _is_random(value)


_NOT_INSIDE = r"(?<![A-Za-z0-9_-])"
_NOT_IN_WORD = r"(?<![A-Za-z0-9])"
_END = r"(?![A-Za-z0-9_-])"
_OPEN = r"\\?[\"'`]?"

_PREFIXES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Anthropic key", ("sk-ant-",), r"[A-Za-z0-9_-]{20,512}+"),
    ("OpenAI key", ("sk-proj-", "sk-svcacct-", "sk-admin-"), r"[A-Za-z0-9_-]{20,512}+"),
    ("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{36,255}+"),
    ("GitHub token", ("github_pat_",), r"[A-Za-z0-9_]{22,255}+"),
    ("GitLab token", ("glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glagent-"), r"[A-Za-z0-9_-]{20,255}+"),
    ("Slack token", (*(f"xox{kind}-" for kind in "abeposr"), "xapp-"), r"[A-Za-z0-9-]{10,512}+"),
    ("Stripe key", ("sk_live_", "sk_test_", "rk_live_", "rk_test_", "whsec_"), r"[A-Za-z0-9]{16,255}+"),
    ("Google API key", ("AIza",), r"[0-9A-Za-z_-]{35}"),
    ("Google OAuth secret", ("GOCSPX-",), r"[A-Za-z0-9_-]{20,64}+"),
    ("Google access token", ("ya29.",), r"[A-Za-z0-9_.-]{20,512}+"),
    ("npm token", ("npm_",), r"[A-Za-z0-9]{36}" + _END),
    ("PyPI token", ("pypi-AgE",), r"[A-Za-z0-9_-]{20,512}+"),
    ("Holdfast token", ("hfm_",), r"[a-z2-7]{0,400}_[a-z2-7]{16}_[A-Za-z0-9_-]{43}"),
    ("Hugging Face token", ("hf_", "api_org_"), r"[A-Za-z0-9]{30,64}+" + _END),
    ("SendGrid key", ("SG.",), r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    ("Docker token", ("dckr_pat_", "dckr_oat_"), r"[A-Za-z0-9_-]{20,255}+"),
    ("Vault token", ("hvs.", "hvb.", "hvr."), r"[A-Za-z0-9_-]{20,512}+"),
    ("DigitalOcean token", ("dop_v1_", "doo_v1_", "dor_v1_"), r"[a-f0-9]{64}"),
    ("Databricks token", ("dapi",), r"[a-f0-9]{32}(?:-[0-9])?" + _END),
    ("Shopify token", ("shpat_", "shpss_", "shpca_", "shppa_"), r"[a-fA-F0-9]{32}"),
    ("Groq key", ("gsk_",), r"[A-Za-z0-9]{40,64}+"),
    ("xAI key", ("xai-",), r"[A-Za-z0-9]{40,128}+"),
    ("Perplexity key", ("pplx-",), r"[A-Za-z0-9]{40,64}+"),
    ("Replicate token", ("r8_",), r"[A-Za-z0-9]{37,64}+"),
    ("NVIDIA key", ("nvapi-",), r"[A-Za-z0-9_-]{40,128}+"),
    ("LangSmith key", ("lsv2_pt_", "lsv2_sk_"), r"[a-f0-9_]{32,64}+"),
    ("Pinecone key", ("pcsk_",), r"[A-Za-z0-9_]{40,128}+"),
    ("Linear key", ("lin_api_",), r"[A-Za-z0-9]{32,64}+"),
    ("Notion token", ("ntn_",), r"[A-Za-z0-9]{40,64}+"),
    ("Figma token", ("figd_",), r"[A-Za-z0-9_-]{36,64}+"),
    ("Postman key", ("PMAK-",), r"[a-f0-9]{24}-[a-f0-9]{34}"),
    ("Grafana token", ("glsa_", "glc_"), r"[A-Za-z0-9_=+/]{32,512}+"),
    ("Supabase token", ("sbp_", "sb_secret_"), r"[A-Za-z0-9_]{30,64}+"),
    ("Sentry token", ("sntrys_", "sntryu_"), r"[A-Za-z0-9_=+/]{40,512}+"),
    ("Doppler token", ("dp.pt.", "dp.st."), r"[A-Za-z0-9_.-]{40,128}+"),
    ("Atlassian token", ("ATATT3", "ATCTT3"), r"[A-Za-z0-9_=-]{60,512}+"),
    ("New Relic key", ("NRAK-",), r"[A-Z0-9]{27}"),
    ("RubyGems key", ("rubygems_",), r"[a-f0-9]{48}"),
    ("PlanetScale token", ("pscale_tkn_", "pscale_pw_"), r"[A-Za-z0-9_.-]{32,64}+"),
    ("age key", ("AGE-SECRET-KEY-1",), r"[0-9A-Z]{58}"),
)  # fmt: skip
"""Tokens that begin with the name of who gave them out: name, beginnings, and what follows."""


def _prefixed(name: str, beginnings: tuple[str, ...], rest: str) -> Format:
    heads = "|".join(map(re.escape, beginnings))
    return Format(name, beginnings, f"{_NOT_IN_WORD}(?:{heads}){rest}", _no_placeholder)


_VALUE = (
    _OPEN + r"[ \t]{0,4}(?:=>|:=|==|=|:)[ \t]{0,4}" + _OPEN + r"(?P<s>[A-Za-z0-9+/_.~!@#$%^*-]{16,512}+={0,2})(?!\()"
)
_ASSIGNED = ("secret", "token", "passw", "passphrase", "pwd", "credential")
_KEYS = ("_key", "_KEY", "-key", "-Key", "-KEY", "piKey", "pikey", "PIKEY", "sKey", "eKey", "tKey", "tKEY", "hKey",
         "pi key", "PI key", "PI Key", "ss key", "ret key")  # fmt: skip
_OTHERS = (
    Format(
        "private key", ("-----BEGIN ",),
        (
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+"
            r"(?:-----END [A-Z0-9 ]{0,40}KEY(?: BLOCK)?-----)?"
        ), _has_key,
    ),
    Format("private key", ("PuTTY-User-Key-File-",), (
        r"PuTTY-User-Key-File-[23]:(?:[^P]|P(?!rivate-Lines)){0,2000}+Private-Lines: [0-9]{1,4}\s{1,4}"
            r"(?:[A-Za-z0-9+/=]{1,80}\s{1,4}){1,200}"
        ), _has_key),
    Format(
        "AWS access key", ("AKIA", "ASIA", "ABIA", "ACCA"),
        _NOT_IN_WORD + r"A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16}(?![A-Za-z0-9])", _no_placeholder,
    ),
    Format(
        "AWS secret key",
        ("ecret_access_key", "ECRET_ACCESS_KEY", "ecretAccessKey", "ecret access key", "ecret Access Key"),
        (
            r"(?i:ecret[_ ]?access[_ ]?key)" + _OPEN + r"\s{0,4}(?:=>|:=|=|:|is|>)\s{0,4}" + _OPEN
            + r"(?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
        ), _no_placeholder,
    ),
    Format(
        "Azure storage key", ("AccountKey=", "SharedAccessKey="),
        r"(?:AccountKey|SharedAccessKey)=(?P<s>[A-Za-z0-9+/]{42,86}={0,2})", _random_one,
    ),
    Format(
        "Azure client secret", ("Q~",),
        r"(?<=[A-Za-z0-9_~.-]{3}[0-9])Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])", _no_placeholder, lead=4,
    ),
    Format(
        "Azure SAS signature", ("sig=",),
        r"(?<=[?&])sig=(?P<s>[A-Za-z0-9%+/]{43,100}(?:%3[Dd]|=))", _random_one,
    ),
    Format(
        "Twilio key", ("SK",),
        _NOT_INSIDE + r"SK[0-9a-f]{32}" + _END, _no_placeholder,
    ),
    Format(
        "Telegram bot token", (":AA",),
        r"(?<=[0-9]{8}):AA[A-Za-z0-9_-]{32,33}" + _END, _no_placeholder,
    ),
    Format(
        "Discord bot token", tuple(f"{a}{b}" for a in "MNO" for b in "DTjz"),
        _NOT_INSIDE + r"[MNO][DTjz][A-Za-z0-9_-]{21,26}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}" + _END,
        _random_one,
    ),
    Format(
        "web hook", ("hooks.slack.com/services/", "/api/webhooks/"),
        (
            r"(?:hooks\.slack\.com/services|/api/webhooks)/(?P<s>[A-Za-z0-9]{8,24}/(?:[A-Za-z0-9]{8,14}/)?"
            r"[A-Za-z0-9_-]{20,100}+)"
        ), _random_one,
    ),
    Format(
        "Docker login", ("auths",),
        r"auths[^@]{0,300}?\"auth\\?\"\s{0,4}:\s{0,4}\\?\"(?P<s>[A-Za-z0-9+/]{8,512}+={0,2})", _names_and_password,
    ),
    Format(
        "JSON web token", ("eyJ",),
        (
            r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4096}+\.eyJ[A-Za-z0-9_-]{8,16384}+\.[A-Za-z0-9_-]{8,4096}+"
        ), _web_token,
    ),
    Format(
        "password in an address", ("://",),
        r"://[^\s/:@?#\"'<>\\]{0,256}+:(?P<s>[^\s/?#\"'<>\\]{4,256})@(?=[A-Za-z0-9\[_%{$-])", _password,
    ),
    Format(
        "bearer token", ("earer ", "EARER "),
        r"(?i:earer) {1,4}(?P<s>[A-Za-z0-9._~+/-]{16,4096}+=*+)", _random_one,
    ),
    Format(
        "basic login", ("asic ", "ASIC "),
        r"(?i:asic) {1,4}(?P<s>[A-Za-z0-9+/]{8,4096}+={0,2})", _names_and_password,
    ),
    Format("API key", ("sk-",), _NOT_INSIDE + r"sk-[A-Za-z0-9_-]{20,512}+", _random_one),
    Format(
        "assigned secret", tuple(
            form for word in _ASSIGNED for form in (word, word.capitalize(), word.upper())
        ),
        (
            r"(?P<name>(?i:secret|token|passw(?:or)?d|passphrase|pwd|credential))(?P<rest>[A-Za-z0-9_-]{0,24})"
            + _VALUE
        ), _assigned,
    ),
    Format(
        "assigned key", _KEYS,
        (
            r"(?i:[ _-]|pi|s|e|t|h|ss |ret |pi )(?=(?i:key))(?P<name>(?i:key))(?P<rest>[A-Za-z0-9_-]{0,24})"
            + _VALUE
        ), _assigned,
    ),
)  # fmt: skip

FORMATS: tuple[Format, ...] = (*(_prefixed(*row) for row in _PREFIXES), *_OTHERS)
"""What secrets look like; where two fit, the earlier names it."""
NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))
_TELLING = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)|secret|token|pwd|(?:api|access|private|secret)[ _-]?key|"
    r"authorization|credentials?)\Z"
)
_TELLING_IN_JSON = re.compile(_TELLING.pattern.replace(r"\Z", '":'))
REMOVED = "[{} removed]"
_SHORT = ("://", "asic ", "ASIC ", "auths", "-----BEGIN ", "PuTTY-User")
"""What stands in a text whose secret may be short, or far from its mark; any other is a long word, or in one."""
_NAMING = ("ecret", "ECRET", "oken", "OKEN", "assw", "ASSW", "phrase", "PHRASE", "pwd", "Pwd", "PWD", "redential",
           "REDENTIAL", "key", "Key", "KEY", "earer ", "EARER ")  # fmt: skip
"""What stands in a text that names a secret before it tells it."""
_LEAST, _LONG = 8, 15
"""Characters of the shortest secret, and of the shortest word that can be one or hold one."""


def _alternatives(marks: Collection[str]) -> str:
    """Return a pattern for any of these texts that looks at no character twice."""
    if "" in marks:
        return ""
    following: dict[str, set[str]] = {}
    for mark in sorted(marks):
        following.setdefault(mark[0], set()).add(mark[1:])
    return f"(?:{'|'.join(re.escape(first) + _alternatives(rest) for first, rest in following.items())})"


@functools.cache
def _mark() -> re.Pattern[str]:
    """Return what finds the places where a mark stands; made when it is first needed."""
    return re.compile(f"(?={_alternatives({mark for form in FORMATS for mark in form.marks})})")


@functools.cache
def _inside() -> re.Pattern[str]:
    """Return what finds the marks that stand in the secret itself."""
    marks = {mark for form in FORMATS for mark in form.marks}
    return re.compile(_alternatives({mark for mark in marks if not any(name in mark for name in _NAMING)}))


@functools.cache
def _pattern(rank: int) -> re.Pattern[str]:
    return re.compile(FORMATS[rank].pattern)


@functools.cache
def _forms(beginning: str) -> tuple[tuple[str, int], ...]:
    """Return the marks that begin like this, each with the place of its form."""
    found = [(mark, rank) for rank, form in enumerate(FORMATS) for mark in form.marks]
    return tuple(each for each in found if each[0].startswith(beginning))


def marked(value: Any) -> bool:
    """Could a JSON value hold a secret? Nearly none can, and this is quickly told."""
    if isinstance(value, str):
        return len(value) >= _LEAST and _hinted(value)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str):
                if len(inner) >= _LEAST and (_telling(name) or _hinted(inner)):
                    return True
            elif inner is not None and marked(inner):
                return True
            if isinstance(name, str) and len(name) >= _LONG and marked(name):
                return True
        return False
    return isinstance(value, list | tuple) and any(map(marked, value))


def could_hold(text: str) -> bool:
    """Could a value that is written as this JSON text hold a secret? A quick test over the whole text."""
    return _hinted(text) or _TELLING_IN_JSON.search(text) is not None


def _hinted(text: str) -> bool:
    """Does a text have a mark that a secret can stand at?"""
    for mark in _SHORT:
        if mark in text:
            return True
    words = [word for word in text.split() if len(word) >= _LONG]
    if not words:
        return False
    for mark in _NAMING:
        if mark in text:
            return True
    return any(map(_inside().search, words))


@functools.lru_cache(maxsize=4096)
def _telling(name: object) -> bool:
    """Is a field named after a secret?"""
    return _TELLING.search(str(name)) is not None


def scan(text: str, allow: Collection[str] = ()) -> list[Secret]:
    """Return the secrets of a text in their order, none of them twice; `allow` names formats that are none."""
    found: list[tuple[int, int, int]] = []
    for start, end, rank in sorted(_spans(text, allow)) if marked(text) else ():
        if found and start < found[-1][1]:
            first, last, before = found[-1]
            found[-1] = (first, max(last, end), min(rank, before))
        else:
            found.append((start, end, rank))
    line, at, result = 1, 0, []
    for start, end, rank in found:
        line, at = line + text.count("\n", at, start), start
        result.append(Secret(FORMATS[rank].name, start, end, line))
    return result


def _spans(text: str, allow: Collection[str]) -> Iterator[tuple[int, int, int]]:
    """Yield where secrets stand: from, to, and the place of their form."""
    read: dict[int, int] = {}
    for at in _mark().finditer(text):
        place = at.start()
        for mark, rank in _forms(text[place : place + 2]):
            form = FORMATS[rank]
            if place < read.get(rank, 0) or not text.startswith(mark, place) or form.name in allow:
                continue
            found = _pattern(rank).match(text, place)
            if found and form.check(found):
                group = "s" if "s" in found.re.groupindex else 0
                read[rank] = found.end()
                yield found.start(group) - form.lead, found.end(group), rank


def redact(text: str, allow: Collection[str] = ()) -> str:
    """Return the text with every known secret replaced by what it was."""
    return without(text, scan(text, allow))


def without(text: str, found: Collection[Secret]) -> str:
    """Return the text with these secrets replaced by what they were."""
    parts, at = [], 0
    for secret in found:
        parts += [text[at : secret.start], REMOVED.format(secret.name)]
        at = secret.end
    return "".join((*parts, text[at:])) if parts else text


def find(value: Any, allow: Collection[str] = (), where: str = "") -> tuple[str, str] | None:
    """Return what kind of secret a JSON value holds and where, like `steps[2], line 3`; None when it holds none."""
    if isinstance(value, str):
        found = scan(value, allow)
        return (
            (found[0].name, f"{where}, line {found[0].line}" if where else f"line {found[0].line}") if found else None
        )
    if isinstance(value, Mapping):
        for name, inner in value.items():
            inside = f"{where}.{name}" if where else str(name)
            if (told := find(str(name), allow, "a name")) or (told := find(inner, allow, inside)):
                return told
            if _names_secret(name, inner) and "assigned secret" not in allow:
                return "assigned secret", inside
    if isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if told := find(inner, allow, f"{where}[{number}]"):
                return told
    return None


def _names_secret(name: object, value: object) -> bool:
    return isinstance(value, str) and _telling(name) and _is_value(value.strip())


def redact_all(value: Any, allow: Collection[str] = (), *, named: bool = True) -> Any:
    """Return a JSON value with secrets removed from every text, and from fields that are named after one.

    Without `named`, only from those of these fields whose value looks like one.
    """
    if isinstance(value, str):
        return redact(value, allow)
    if isinstance(value, Mapping):
        return {
            redact(name, allow) if isinstance(name, str) else name: _field(name, inner, allow, named)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_all(inner, allow, named=named) for inner in value]
    return value


def _field(name: object, value: Any, allow: Collection[str], named: bool) -> Any:
    if isinstance(value, str) and value and _telling(name) and (named or _is_value(value.strip())):
        return "[removed]"
    return redact_all(value, allow, named=named)
