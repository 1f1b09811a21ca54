"""Records in any language are found by their words: one memory with all languages, asked in each.

Accents may be typed or left out, composed or not; scripts without spaces are found by any part of a sentence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Literal

import pytest

import holdfast
from holdfast.roots import make_root

SAID: dict[str, list[tuple[str, list[str]]]] = {
    "Chinese": [
        ("我们每周二下午部署服务器。", ["部署服务器", "周二"]),
        ("妈妈对花生过敏，不要买花生酱。", ["花生过敏", "花生酱"]),
        ("项目使用 PostgreSQL 数据库，端口是 5433。", ["PostgreSQL 数据库", "数据库端口", "postgresql"]),
        ("图书馆的门禁密码改成了四位数字。", ["门禁密码", "图书馆"]),
        ("臺北的會議改到星期五上午。", ["臺北會議", "星期五上午"]),
    ],
    "Japanese": [
        ("毎週火曜日にデプロイします。", ["火曜日 デプロイ", "デプロイ"]),
        ("猫の名前はタマで、魚が好きです。", ["猫の名前", "タマ"]),
        ("サーバーのﾊﾞｯｸｱｯﾌﾟは深夜に取ります。", ["バックアップ", "ﾊﾞｯｸｱｯﾌﾟ 深夜"]),
        ("会議室は３階の２０５号室です。", ["205号室", "２０５", "会議室"]),
        ("ＡＰＩキーは金庫に入れてある。", ["APIキー", "金庫"]),
    ],
    "Korean": [
        ("서버 배포는 매주 화요일 오후에 합니다.", ["배포", "화요일"]),
        ("할머니 생신은 시월 삼일이다.", ["할머니 생신", "생신"]),
        ("회의실 비밀번호를 바꾸었습니다.", ["비밀번호", "회의실"]),
        ("고양이가 소파에서 잔다.", ["고양이", "소파"]),
    ],
    "Russian": [
        ("Кошка спит на диване возле окна.", ["кошка диван", "КОШКА"]),
        ("Ёлку поставили в гостиной.", ["ёлку", "елку"]),
        ("Пароль от роутера лежит в синей папке.", ["пароль роутера", "синей папке"]),
        ("Поезд в Казань отходит в девять вечера.", ["Казань", "поезд"]),
    ],
    "Ukrainian": [
        ("Їжак живе під старою яблунею.", ["їжак", "яблунею"]),
        ("Зустріч із лікарем перенесли на четвер.", ["зустріч лікарем", "четвер"]),
        ("Ґанок пофарбували в зелений колір.", ["ґанок", "зелений"]),
    ],
    "Greek": [
        ("Η συνάντηση έγινε στη Θεσσαλονίκη.", ["θεσσαλονίκη", "Θεσσαλονικη", "ΘΕΣΣΑΛΟΝΙΚΗ"]),
        ("Ο Οδυσσεύς είναι ο γάτος της γιαγιάς.", ["οδυσσεύς", "ΟΔΥΣΣΕΥΣ", "γάτος"]),
        ("Το κλειδί είναι κάτω από τη γλάστρα.", ["κλειδί", "γλαστρα"]),
    ],
    "Arabic": [
        ("الاجتماع يوم الثلاثاء في المكتبة.", ["الثلاثاء", "المكتبة"]),
        ("كَلِمَةُ السِّرِّ مَكْتُوبَةٌ فِي الدَّفْتَرِ.", ["كلمة السر", "الدفتر"]),
        ("يحب أخي القهوة بدون سكر.", ["القهوة", "سكر"]),
        ("رقم الغرفة ٢٠٧ في الطابق الثاني.", ["٢٠٧", "207"]),
    ],
    "Hebrew": [
        ("הפגישה נקבעה ליום שלישי בבוקר.", ["הפגישה", "שלישי"]),
        ("שָׁלוֹם לַסַּבְתָּא, הַמַּפְתֵּחַ בַּמְּגֵרָה.", ["המפתח", "שלום"]),
        ("הכלב אוהב גזר ותפוחים.", ["הכלב", "גזר"]),
    ],
    "Hindi": [
        ("बैठक मंगलवार को पुस्तकालय में होगी।", ["मंगलवार", "पुस्तकालय"]),
        ("दादी को मूंगफली से एलर्जी है।", ["मूंगफली", "दादी एलर्जी"]),
        ("नया पासवर्ड लाल किताब में लिखा है।", ["पासवर्ड", "लाल किताब"]),
    ],
    "Thai": [
        ("ประชุมทีมทุกวันอังคารที่ห้องสมุด", ["วันอังคาร", "ห้องสมุด"]),
        ("แมวชื่อมะลิชอบกินปลา", ["มะลิ", "ชอบกินปลา"]),
        ("รหัสผ่านเก็บไว้ในลิ้นชัก", ["รหัสผ่าน", "ลิ้นชัก"]),
    ],
    "Vietnamese": [
        ("Cuộc họp diễn ra ở thư viện Đà Nẵng.", ["thư viện", "thu vien", "Đà Nẵng", "Da Nang"]),
        ("Bà ngoại dị ứng với đậu phộng.", ["đậu phộng", "dau phong", "dị ứng"]),
        ("Chìa khóa nằm dưới chậu cây.", ["chìa khóa", "chia khoa"]),
    ],
    "Turkish": [
        ("İstanbul'daki toplantı ertelendi.", ["İstanbul", "istanbul", "toplantı", "toplanti"]),
        ("Dişçi randevusu ılık bir salı günüydü.", ["DİŞÇİ", "dişçi", "ILIK", "ılık", "disci"]),
        ("Işık faturası çekmecede duruyor.", ["ışık", "IŞIK", "isik", "çekmecede"]),
    ],
    "German": [
        ("Der Schlüssel liegt unter dem Blumenkübel in der Straße.", ["schlüssel", "Schlussel", "STRASSE", "Straße"]),
        ("Das Kündigungsgespräch war in Zürich.", ["Kündigungsgespräch", "kundigungsgesprach", "zurich"]),
        ("Oma mag Äpfel und Maßkrüge.", ["äpfel", "Apfel", "Masskrüge"]),
    ],
    "French": [
        ("Le garçon a rangé les clés dans l'armoire à côté du cœur.", ["garçon", "garcon cles", "armoire", "coeur"]),
        ("L'œuvre d'Éloïse est au musée d'Orléans.", ["œuvre", "oeuvre", "Eloise", "orléans"]),
        ("Le dîner de Noël aura lieu chez tante Zoë.", ["dîner noël", "noel", "Zoe"]),
    ],
    "Spanish": [
        ("El niño aprendió a nadar en la piscina de Málaga.", ["niño", "nino", "Malaga"]),
        ("La contraseña está en el cajón.", ["contraseña", "contrasena", "cajón", "CAJÓN"]),
        ("El pingüino comió demasiado.", ["pingüino", "pinguino"]),
    ],
    "Polish": [
        ("Spotkanie w Łodzi przesunięto na środę.", ["Łodzi", "lodzi", "środę", "srode"]),
        ("Babcia piecze żurek i pączki.", ["żurek", "zurek", "pączki", "paczki"]),
        ("Gęś uciekła za stodołę.", ["gęś", "stodołę", "stodole"]),
    ],
    "Czech": [
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.", ["žluťoučký kůň", "zlutoucky kun", "ďábelské"]),
        ("Schůzka bude v úterý v Třebíči.", ["schůzka", "schuzka", "Trebici"]),
        ("Klíče jsou pod rohožkou.", ["klíče", "klice", "rohožkou"]),
    ],
    "mixed": [
        ("Деплой через GitHub Actions по средам.", ["github actions", "деплой"]),
        ("Redis缓存设置为30分钟。", ["Redis缓存", "redis", "缓存设置", "30分钟"]),
        ("カフェWi-Fiのパスワードはneko2024です。", ["neko2024", "カフェ"]),
        ("Die Besprechung mit 田中 war gut.", ["田中", "besprechung"]),
    ],
}  # fmt: skip
ASKED = [
    pytest.param(text, query, id=f"{language}: {query}")
    for language, said in SAID.items()
    for text, queries in said
    for query in queries
]


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[holdfast.Memory]:
    root = tmp_path_factory.mktemp("languages").resolve() / "root"
    make_root(str(root))
    with holdfast.open(root) as opened:
        for language, said in SAID.items():
            for number, (text, _) in enumerate(said):
                opened.put("message", text, session=f"{language} {number}")
        yield opened


def best(memory: holdfast.Memory, query: str) -> tuple[list[str], list[str]]:
    """Return what a search and a recall answer."""
    reply = memory.call("recall", {"query": query})
    return [hit.record.text for hit in memory.find(query)], [hit["text"] for hit in reply["hits"]]


def test_there_is_enough_to_choose_from() -> None:
    assert sum(map(len, SAID.values())) >= 60
    assert len(ASKED) >= 60


@pytest.mark.parametrize(("text", "query"), ASKED)
def test_words_find_what_was_said_in_any_language(memory: holdfast.Memory, text: str, query: str) -> None:
    searched, recalled = best(memory, query)
    assert (searched[:1], recalled[:1]) == ([text], [text])


@pytest.mark.parametrize("form", ["NFD", "NFKC", "NFKD"])
def test_every_form_of_the_same_letters_finds_the_same(
    memory: holdfast.Memory, form: Literal["NFD", "NFKC", "NFKD"]
) -> None:
    asked = [(text, query) for said in SAID.values() for text, queries in said for query in queries]
    changed = [(text, unicodedata.normalize(form, query), query) for text, query in asked]
    for text, other, query in changed:
        if other != query:
            assert [hit.record.text for hit in memory.find(other)][:1] == [text], query


def test_what_is_kept_decomposed_is_found_composed(root: object) -> None:
    with holdfast.open(str(root)) as memory:
        for said in SAID.values():
            for number, (text, _) in enumerate(said):
                memory.put("message", unicodedata.normalize("NFD", text), session=f"{number} {text[:5]}")
        for said in SAID.values():
            for text, queries in said:
                for query in queries:
                    found = [unicodedata.normalize("NFC", one) for one in best(memory, query)[0]]
                    assert found[:1] == [unicodedata.normalize("NFC", text)], query
