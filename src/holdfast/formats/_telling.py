"""The sentences of a text, and how much each of them tells.

A sentence ends at its mark or with its line. One that is too long for a summary is cut into pieces, at a comma or a
space where there is one, and `…` stands at every cut; nothing else is ever changed. Numbers, names, paths, quoted
words, decisions, results and errors tell; greetings tell nothing, and questions and announcements little. The lists of
words are short and mostly English: in other languages numbers, names and rare words have to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holdfast.model.queries import QUESTION_WORDS, fold
from holdfast.model.tokens import WIDE

LONGEST = 240
"""Characters of a sentence, or of a piece of one."""
CUT = "…"

_MARK = re.compile(r"[^\S\n]*(?:(?:[-*+•>]|#{1,6})\s+)*")
_END = re.compile(
    r"(?<=[.!?…\U0001F300-\U0001FAFF])\s+|(?<=[.!?…][\"'”’»)\]])\s+|(?<=[:;-]\))\s+"
    r"|(?<=[。！？])(?![。！？」』”’）])|(?<=[。！？][」』”’）])"
)
"""Where a sentence may end: behind its mark, and in a chat also behind a face."""
_SHORT_FORMS = frozenset("e.g i.e etc vs cf mr mrs dr prof st approx ca fig al z.b d.h u.a p.s".split())
_SIGNS = re.compile(
    r"`[^`]+`|\"[^\"]{2,}\"|“[^”]+”|[「『《][^」』》]+[」』》]|https?://\S+|[\w.~-]*[/\\][\w./\\-]+"
    r"|\w+_\w+|\b[a-z]+[A-Z]\w*|\w+\(\)|\b\w+\.[a-z]{1,5}\b|#\d+"
)
"""What is written like code, a path, an address or a quotation."""
_HAS_SIGNS = re.compile(r"[`\"“「『《/\\_#(]|[a-z][A-Z]|\w\.\w")
_ANNOUNCED = re.compile(
    r"(?:ok(?:ay)?|so|now|well|alright|first|next|then)?[,.!]?\s*"
    r"(?:let me|let's|let us|i'll|i will|i am|i'm|we'll|we will|going to|looking|checking|working)\b",
    re.IGNORECASE,
)

_DECIDED = frozenset(
    "decide decided decides decision choose chose chosen agreed agree because therefore must never always instead"
    " rejected reject replaced replace prefer prefers preferred require required requires forbidden only deadline"
    " until not rule policy approved 决定 決定 因为 因為 必须 必須 不要 代替 결정 때문".split()
)
_RESULT = frozenset(
    "result results found fixed fix cause caused fails fail failed failure failing error errors exception traceback"
    " crash crashed broken bug timeout refused denied warning passed passes solved works measured learned shows"
    " turned increased decreased dropped lost leak released deployed merged migrated 错误 錯誤 失败 失敗 结果 結果"
    " 修复 修正 发现 오류 실패 결과".split()
)
_GREETINGS = frozenset(
    "hi hello hey hiya dear morning afternoon evening night good great nice fine cool perfect awesome excellent"
    " thanks thank thx ty cheers welcome please sorry bye goodbye see later soon ok okay k yes yeah yep yup sure right"
    " alright no nope well oh ah hm hmm hmmm haha lol lot much very many all everyone team again let know got sounds"
    " looks makes sense problem worries course absolutely definitely of you re m s ll ve t d day weekend hope how going"
    " hola gracias bonjour merci salut hallo danke guten tag morgen abend bitte ciao grazie prego ola obrigado obrigada"
    " привет спасибо здравствуйте 你好 您好 谢谢 謝謝 こんにちは ありがとう"
    " ありがとうございます おはよう おはようございます 안녕하세요 감사합니다 早上好 再见 再見".split()
) | (QUESTION_WORDS - {"could", "might", "should", "why", "while"})


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text in order, each on one line."""
    for line in text.splitlines():
        start = found.end() if (found := _MARK.match(line)) else 0
        for end in _END.finditer(line):
            if end.start() > start and not _goes_on(line[max(start, end.start() - 8) : end.start()]):
                yield line[start : end.start()].strip()
                start = end.end()
        if rest := line[start:].strip():
            yield rest


def _goes_on(before: str) -> bool:
    """Does what looks like the end of a sentence only end a short form, an initial or the number of a list?"""
    if not before.endswith("."):
        return False
    last = (before[:-1].split()[-1:] or [""])[0].strip("(\"'")
    if len(last) == 1:
        return last.isupper() or last.isdecimal()
    return last.casefold() in _SHORT_FORMS or (len(last) == 2 and last.isdecimal())


def pieces(sentence: str) -> Iterator[str]:
    """Yield a sentence as it is, or the pieces of one that is too long for a summary; a piece stays as it is."""
    if len(sentence.strip(CUT)) <= LONGEST:
        yield sentence
        return
    start = 0
    while len(sentence) - start > LONGEST:
        low, high = start + LONGEST // 2, start + LONGEST
        cut = max(sentence.rfind(mark, low, high) for mark in ",;，、；：")
        cut = cut if cut >= 0 else sentence.rfind(" ", low, high)
        cut = cut + 1 if cut >= 0 else high
        yield (CUT if start else "") + sentence[start:cut].strip() + CUT
        start = cut
    yield (CUT if start else "") + sentence[start:].strip()


def words(text: str) -> list[str]:
    """Return the words of a text; of a script without spaces, every pair of neighbours, or one that stands alone."""
    found = list(fold(text))
    if text.isascii():
        return found
    result: list[str] = []
    for place, word in enumerate(found):
        if not WIDE.match(word):
            result.append(word)
        elif place + 1 < len(found) and WIDE.match(found[place + 1]):
            result.append(word + found[place + 1])
        elif not place or not WIDE.match(found[place - 1]):
            result.append(word)
    return result


def is_greeting(text: str, found: Sequence[str]) -> bool:
    """Does a sentence of these words say nothing?"""
    return _GREETINGS.issuperset(found) or (not text.isascii() and "".join(fold(text)) in _GREETINGS)


def weight(text: str, found: Sequence[str]) -> float:
    """Say how much a sentence of these words tells: about 0.5 for plain words, up to 8."""
    plain = min(1.0, sum(1 for word in found if word not in _GREETINGS) / 5) * 0.5
    numbers = len({word for word in found if word[0].isdigit()})
    names = sum(1 for word in text.split()[1:] if word[0].isupper() and len(word) > 1 and word[1] not in "'’")
    signs = len(_SIGNS.findall(text)) if _HAS_SIGNS.search(text) else 0
    total = (
        plain
        + 0.5 * min(numbers, 4)
        + 0.4 * min(names, 3)
        + 0.6 * min(signs, 2)
        + 0.9 * min(len(_DECIDED.intersection(found)), 2)
        + 0.8 * min(len(_RESULT.intersection(found)), 2)
    )
    if text.endswith(("?", "？")):
        total *= 0.6
    return total * 0.5 if _ANNOUNCED.match(text) else total
