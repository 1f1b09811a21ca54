"""Each step of the ranking, in a small memory where it decides; and properties of all answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import quality
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.cli.main import cli
from holdfast.model.queries import Query
from holdfast.model.settings import STEPS, Search

SYLLABLES = ("bra", "klo", "mi", "ste", "dun", "fel", "gor", "ta", "no", "xi")
HISTORY = "user/memory/history.jsonl"
FILLER = [
    "The weather was mild and the streets were empty.", "We had soup and talked for an hour.",
    "The printer is out of paper again.", "She found an old coat in the cellar.",
    "Our neighbours are repainting the fence.", "There was a long queue at the bakery.",
    "He is learning to juggle with three oranges.", "The clock in the hall stopped at noon.",
]  # fmt: skip


@pytest.fixture(autouse=True)
def by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about words; meaning has tests of its own."""
    monkeypatch.setenv("HOLDFAST_SEARCH_EMBEDDER", "none")


def say(memory: holdfast.Memory, *texts: str, channel: str = "talk", **more: Any) -> list[str]:
    lines = [{"role": "user", "content": text, "channel": channel} | more for text in texts]
    return memory.add(HISTORY, lines, time="timestamp", durable=False)


def recall(memory: holdfast.Memory, query: str, **more: Any) -> list[dict[str, Any]]:
    reply = memory.call("recall", {"query": query} | more)
    assert reply.get("success", True), reply
    hits: list[dict[str, Any]] = reply["hits"]
    return hits


def texts(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["text"] for hit in hits]


def weighed(root: Path, **weights: float) -> holdfast.Memory:
    """Open the root with other weights."""
    lines = "".join(f"{name} = {value}\n" for name, value in weights.items())
    (root / "holdfast.toml").write_text(f"[search]\n{lines}")
    return holdfast.open(root)


@pytest.fixture
def filled(memory: holdfast.Memory) -> Iterator[holdfast.Memory]:
    for number, text in enumerate(FILLER):
        say(memory, text, channel=f"filler {number}", timestamp="2023-01-05T10:00:00Z")
    yield memory


# steps


def test_what_stands_around_a_record_decides_between_two_that_say_the_same(filled: holdfast.Memory) -> None:
    time = "2023-03-01T10:00:00Z"
    say(filled, "Norway was cold.", "It took six hours to arrive.", "It rained.", channel="b", timestamp=time)
    say(filled, "We went by train.", "It took six hours.", "It was lovely.", channel="a", timestamp=time)
    found = texts(recall(filled, "How many hours did Norway take?"))
    assert found.index("It took six hours to arrive.") < found.index("It took six hours.")


def test_the_answer_that_stands_beside_the_words_is_found_too_but_not_by_a_search(filled: holdfast.Memory) -> None:
    question, answer, _ = say(filled, "What is your cat called?", "Mister Whiskers.", "Sweet!")
    hits = recall(filled, "name of the cat")
    found = {hit["id"]: hit for hit in hits}
    assert found[answer]["why"] == [f"beside {question}"]
    assert answer not in [hit.record.id for hit in filled.find("name of the cat")]


def test_the_author_that_a_question_names_is_preferred(filled: holdfast.Memory) -> None:
    say(filled, "I adopted a puppy.", channel="a", sender_id="Melanie", timestamp="2023-03-01T10:00:00Z")
    say(filled, "I adopted a puppy!", channel="b", sender_id="Caroline", timestamp="2023-03-01T10:00:00Z")
    for name in ("Melanie", "Caroline"):
        best = recall(filled, f"What puppy did {name} adopt?")[0]
        assert f"by {name.lower()}" in best["why"]


def test_what_an_assistant_said_counts_less_when_the_asker_asks_about_themself(filled: holdfast.Memory) -> None:
    time = "2023-03-01T10:00:00Z"
    (theirs,) = say(filled, "Running marathons is great for health.", channel="a", role="assistant", timestamp=time)
    (own,) = say(filled, "Running marathons is great for my health.", channel="b", timestamp=time)
    assert recall(filled, "Which marathons am I running? I forgot")[0]["id"] == own
    assert {hit["id"] for hit in recall(filled, "marathons")} == {own, theirs}


def test_a_time_that_the_question_names_decides(filled: holdfast.Memory) -> None:
    for month in ("02", "05", "09"):
        say(filled, f"We visited the museum, number {month}.", channel=month, timestamp=f"2023-{month}-08T10:00:00Z")
    for name, month in (("February", "02"), ("May", "05"), ("September", "09")):
        best = recall(filled, f"Which museum did we visit in {name} 2023?", asked="2023-12-01")[0]
        assert best["text"].endswith(f"number {month}.")
        assert "of that time" in best["why"]
    best = recall(filled, "Which museum did we visit three months ago?", asked="2023-08-08")[0]
    assert best["text"].endswith("number 05.")


def test_of_equals_the_newer_is_first(filled: holdfast.Memory) -> None:
    for month in ("02", "09", "05"):
        say(filled, f"The password hint is tulip ({month}).", channel=month, timestamp=f"2023-{month}-08T10:00:00Z")
    found = [text[-4:-2] for text in texts(recall(filled, "password hint tulip", asked="2023-10-01"))[:3]]
    assert found == ["09", "05", "02"]


def test_what_was_not_known_yet_when_it_was_asked_is_left_out(filled: holdfast.Memory) -> None:
    say(filled, "My flat is in Oslo.", channel="a", timestamp="2023-02-01T10:00:00Z")
    say(filled, "My flat is in Rome.", channel="b", timestamp="2023-06-01T10:00:00Z")
    assert texts(recall(filled, "Where is my flat?"))[0] == "My flat is in Rome."
    assert texts(recall(filled, "Where is my flat?", asked="2023-03-01")) == ["My flat is in Oslo."]


def test_a_record_shares_in_the_best_of_its_session(filled: holdfast.Memory) -> None:
    time = "2023-03-01T10:00:00Z"
    say(filled, "The sailing club meets on Friday.", *FILLER[:4], "The club is nice.", channel="a", timestamp=time)
    say(filled, "The club is small.", channel="b", timestamp=time)
    found = texts(recall(filled, "sailing club Friday"))
    assert found.index("The club is nice.") < found.index("The club is small.")


def test_a_record_with_every_word_comes_before_one_that_repeats_some(filled: holdfast.Memory) -> None:
    time = "2023-03-01T10:00:00Z"
    say(filled, "Garden, garden, garden: the garden gate!", channel="a", timestamp=time)
    say(filled, "Behind the gate of the garden, under a stone, lies the key.", channel="b", timestamp=time)
    assert "key" in texts(recall(filled, "key garden gate"))[0]


def test_a_step_of_weight_zero_is_left_out(filled: holdfast.Memory, root: Path) -> None:
    say(filled, "I adopted a puppy.", channel="a", sender_id="Melanie", timestamp="2023-03-01T10:00:00Z")
    say(filled, "I adopted a puppy!", channel="b", sender_id="Caroline", timestamp="2023-03-01T10:00:01Z")
    filled.close()
    with weighed(root, author=0, around=0, beside=0, session=0) as memory:
        hits = recall(memory, "What puppy did Melanie adopt?")
        assert hits[0]["score"] == hits[1]["score"]


# properties of all answers


def test_sessions_come_one_hit_each(filled: holdfast.Memory) -> None:
    say(filled, "The boat is blue.", "The boat leaks.", "A boat needs paint.", channel="a")
    say(filled, "Boats are expensive.", channel="b")
    say(filled, "Boats are expensive.", channel="c")
    found = filled.find(Query(text="boat", associate=True, level="sessions"))
    assert sorted(hit.record.scope.session for hit in found) == ["a", "b", "c"]
    assert len(recall(filled, "boat", level="sessions")) == 3


def test_what_says_the_same_as_something_better_is_left_out(filled: holdfast.Memory) -> None:
    say(filled, "Boats are expensive.", channel="b")
    say(filled, "Boats are  expensive.", channel="c")
    assert len([text for text in texts(recall(filled, "boats")) if "expensive" in text]) == 1
    assert len(filled.find("boats")) == 2


def test_a_question_about_something_else_has_no_answer(memory: holdfast.Memory) -> None:
    rng = random.Random(3)
    for number in range(300):
        say(memory, " ".join(rng.sample(FILLER, 2)), channel=f"c{number % 20}")
    for question in (
        "What is the boiling point of tungsten carbide?",
        "Which vaccine did the veterinarian recommend for Max?",
        "How old was Napoleon when the empire collapsed?",
    ):
        assert memory.call("recall", {"query": question})["text"] == "Nothing relevant.", question
    assert recall(memory, "Who is juggling oranges?")


def test_a_title_in_quotes_need_not_stand_there_word_for_word(filled: holdfast.Memory) -> None:
    say(filled, "I read Nothing Is Ever Impossible in one night.")
    assert recall(filled, 'Did I read "Nothing is Impossible"?')
    assert not filled.find('"Nothing is Impossible"').hits


def test_three_words_of_a_record_find_it_first(memory: holdfast.Memory) -> None:
    rng = random.Random(5)
    vocabulary = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES]
    said = [" ".join(rng.sample(vocabulary, 12)) for _ in range(200)]
    for number, text in enumerate(said):
        say(memory, text, channel=f"c{number % 15}", timestamp=f"2023-03-{number % 28 + 1:02d}T10:00:00Z")
    for text in said[::10]:
        assert texts(recall(memory, " ".join(rng.sample(text.split(), 3))))[0] == text


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我们在星期二部署服务器。", "部署服务器"),
        ("毎週火曜日にデプロイします", "火曜日"),
        ("Кошка спит на диване.", "кошка"),
        ("الاجتماع يوم الثلاثاء", "الثلاثاء"),
        ("Wir treffen uns im Café Zürich.", "cafe zurich"),
        ("ประชุมวันอังคาร", "อังคาร"),
    ],
)
def test_every_script_is_found_by_keyword(filled: holdfast.Memory, text: str, query: str) -> None:
    say(filled, text)
    assert texts(recall(filled, query))[0] == text


def test_the_same_question_has_the_same_answer_also_from_a_fresh_index(filled: holdfast.Memory) -> None:
    rng = random.Random(11)
    for number in range(120):
        say(filled, rng.choice(FILLER), rng.choice(FILLER) + f" {number}", channel=f"c{number % 7}")
    question = Query(text="Who found the coat or the queue at the bakery?", associate=True, limit=50)

    def answer() -> list[tuple[str, float]]:
        return [(hit.record.id, hit.score) for hit in filled.find(question)]

    first = answer()
    assert len(first) > 10
    assert answer() == first
    filled.refresh(rebuild=True)
    assert answer() == first


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_any_query_has_an_answer(filled: holdfast.Memory, query: str) -> None:
    reply = filled.call("recall", {"query": query})
    assert "hits" in reply or not query.strip(), reply


@pytest.mark.parametrize(
    "query",
    [
        "", " ", "a", "?", '"', '""', "AND", "NOT (coat OR", "coat AND NEAR(", "title:coat", "coat*", "^coat", "-coat",
        "{coat text}: x", "kind:", "tag:", "; DROP TABLE records; --", "coat " * 10_000, "x" * 50_000,
    ],
)  # fmt: skip
def test_a_query_is_never_syntax(filled: holdfast.Memory, query: str) -> None:
    reply = filled.call("recall", {"query": query})
    assert "hits" in reply or not query.strip(), reply


@pytest.mark.parametrize(
    "query",
    [
        "coat AND (", "(coat", "coat)", "coat*", "*coat", "^coat", "-coat", "+coat", "NOT coat", "coat NEAR/3 queue",
        "NEAR(coat zz, 5)", '"coat', 'coat"', '""coat""', "coat:", "text:coat", "{title text}: coat", "coat^2", "coat\\",
        "'coat'", "coat; --", "coat\0", "\0coat", "coat\ufffe", "coat\u200b", "((((" * 500 + "coat", "-" * 5_000 + "coat",
        "coat " + " ".join(f"word{number}" for number in range(10_000)), "COAT", "coat OR OR OR", "%coat_", "<coat>",
    ],
    ids=lambda query: ascii(query)[:30],
)  # fmt: skip
def test_signs_around_a_word_do_not_keep_it_from_being_found(filled: holdfast.Memory, query: str) -> None:
    found = [hit.record.text for hit in filled.find(query)]
    assert found[:1] == [text for text in FILLER if "coat" in text]
    reply = filled.call("recall", {"query": query})
    assert reply.get("success", True) and isinstance(reply["hits"], list), reply


@pytest.mark.parametrize("query", ["", " ", "\n", "\0"], ids=ascii)
def test_a_recall_of_nothing_says_what_to_do(filled: holdfast.Memory, query: str) -> None:
    reply = filled.call("recall", {"query": query})
    assert not reply.get("hits")
    assert reply.get("text") or reply.get("error"), reply


def test_what_was_written_after_the_day_of_asking_has_no_part_in_the_answer(memory: holdfast.Memory) -> None:
    say(memory, "The boat is here.", timestamp="2023-01-01T10:00:00Z")
    say(memory, "An anchor was bought.", timestamp="2023-01-01T10:05:00Z")
    asked: dict[str, Any] = {"associate": True, "asked": "2023-01-02"}
    questions = ("boat anchor", "boat zanzibar paint crowns", "where is the boat?")
    say(memory, "Soup.", channel="other", timestamp="2023-02-01T10:00:00Z")
    before = [[hit.record.text for hit in memory.find(text, **asked)] for text in questions]
    say(memory, "Zanzibar paint for the boat cost eighty crowns.", timestamp="2023-02-01T10:00:00Z")
    assert [[hit.record.text for hit in memory.find(text, **asked)] for text in questions] == before


# why


def explained(memory: holdfast.Memory, query: str, identifier: str, **more: Any) -> dict[str, Any]:
    arguments = ["why", query, identifier, "--root", memory.root, *(part for pair in more.items() for part in pair)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.output)
    return told


def test_why_tells_the_score_step_by_step(filled: holdfast.Memory) -> None:
    (known,) = say(filled, "I adopted a puppy.", sender_id="Melanie", timestamp="2023-03-01T10:00:00Z")
    told = explained(filled, "When did Melanie adopt a puppy?", known)
    assert (told["rank"], told["words"], told["missing"]) == (1, ["adopt", "puppy"], ["melanie"])
    assert [step["step"] for step in told["steps"]] == ["words", "who", "beside", "when", "session"]
    assert told["steps"][-1]["score"] == told["score"]
    assert sum(step["change"] for step in told["steps"]) == pytest.approx(told["score"], abs=0.01)


def test_why_tells_why_a_record_is_no_hit(filled: holdfast.Memory) -> None:
    (known,) = say(filled, "I adopted a puppy.", channel="a")
    (other,) = say(filled, "Nothing of the kind.", channel="b")
    assert "filter" in explained(filled, "puppy", known, **{"--kind": "note"})["left_out"]
    assert "filter" in explained(filled, "puppy", known, **{"--asked": "2001-01-01"})["left_out"]
    assert "No word" in explained(filled, "puppy", other)["left_out"]
    low = explained(filled, "puppy tungsten carbide boiling point napoleon empire vaccine", known)
    assert (low.get("rank", 0), "floor" in low["left_out"]) == (0, True)


def test_why_knows_what_says_the_same_as_something_better(filled: holdfast.Memory) -> None:
    one, other = say(filled, "I adopted a puppy.", channel="a"), say(filled, "I adopted  a puppy.", channel="b")
    told = [explained(filled, "Who adopted a puppy?", id) for id in (*one, *other)]
    assert sorted(each.get("rank", 0) for each in told) == [0, 1]
    assert any("has the same text" in each.get("left_out", "") for each in told)


def test_why_gives_the_place_that_recall_gives_also_among_sessions(filled: holdfast.Memory) -> None:
    told = [f"A puppy was seen {times}" for times in ("once", "again and again in the park", "by the puppy's owner")]
    ids = [id for channel in "ab" for text in told for id in say(filled, f"{text} {channel}", channel=channel)]
    for level in ("records", "sessions"):
        found = filled.find("Who saw a puppy in the park?", associate=True, level=level, limit=100)
        places = {hit.record.id: place for place, hit in enumerate(found, 1)}
        explanations = [explained(filled, "Who saw a puppy in the park?", id, **{"--level": level}) for id in ids]
        assert [each.get("rank", 0) for each in explanations] == [places.get(id, 0) for id in ids]
        assert all(each.get("rank", 0) or "session" in each["left_out"] for each in explanations)


def test_why_looks_where_recall_looks(memory: holdfast.Memory, root: Path) -> None:
    (root / "resources/workspaces/w/d").mkdir(parents=True)
    for scope in ("w", "w/d"):
        (root / f"resources/workspaces/{scope}/OVERVIEW.md").write_text("Here.\n")
    above = memory.put("note", "The zebra eats grass.", title="Grass", scope="w").id
    reply = memory.call("recall", {"query": "zebra", "scope": "w/d"})
    assert [hit["id"] for hit in reply["hits"]] == [above]
    assert explained(memory, "zebra", above, **{"--scope": "w/d"})["rank"] == 1


def test_why_gives_the_place_among_our_own_records_and_those_of_other_programs(
    memory: holdfast.Memory, root: Path
) -> None:
    note = memory.put("note", "A zebra, told at length, in the field behind the house.", title="Animals").id
    (root / "agent-transcripts").mkdir(exist_ok=True)
    (root / "agent-transcripts/one.jsonl").write_text(
        json.dumps({"role": "user", "content": "zebra", "timestamp": "2026-01-01T10:00:00Z"}) + "\n"
    )
    query = Query(text="zebra", kinds=("note", "transcript"), associate=True)
    found = [hit.record.id for hit in memory.find(query)]
    assert len(found) == 2
    assert [memory.explain(query, id).rank for id in found] == [1, 2]
    assert note in found


def test_what_was_called_important_ranks_a_little_higher(memory: holdfast.Memory) -> None:
    for priority in (2, 9, 5):
        text = f"The boat needs paint number {priority}."
        memory.put("note", title=f"Paint {priority}", text=text, fields={"priority": priority})
    hits = recall(memory, "What does the boat need?")
    assert [text[-2] for text in texts(hits)] == ["9", "5", "2"]
    assert "priority" in [step["step"] for step in explained(memory, "boat paint", hits[0]["id"])["steps"]]


def test_a_name_that_the_memory_does_not_know_weighs_more_than_a_word(memory: holdfast.Memory) -> None:
    for number, text in enumerate(FILLER * 5):
        say(memory, f"{text} {number}", channel=f"c{number}")
    say(memory, "I went to a market with my sister.", sender_id="Melanie", channel="m")
    assert recall(memory, "When did Melanie go to the market?")
    assert not recall(memory, "When did Quentin Aldersey visit Ulaanbaatar near the market?")


def test_a_long_record_lends_no_words_to_what_stands_around_it(memory: holdfast.Memory) -> None:
    long = " ".join(f"word{number}" for number in range(160))
    _, beside_long = say(memory, f"{long} lighthouse", "This is another one.", channel="a")
    _, beside_short = say(memory, "lighthouse", "This is one more.", channel="b")
    assert explained(memory, "lighthouse", beside_long)["steps"][0]["score"] == 0
    assert explained(memory, "lighthouse", beside_short)["steps"][0]["score"] > 0


# scripts/bench quality


SET = {
    "name": "small",
    "corpora": [
        {
            "name": "one",
            "turns": [
                {"id": f"{session}:{number}", "session": session, "time": "2023-03-01T10:00:00+00:00",
                 "speaker": "Ann", "role": "user", "text": text}
                for session, said in (("s1", FILLER[:4]), ("s2", FILLER[4:])) for number, text in enumerate(said)
            ],
            "questions": [
                {"id": "q1", "question": "Who juggles oranges?", "time": None, "category": "plain",
                 "turns": ["s2:2"], "sessions": ["s2"]},
                {"id": "q2", "question": "Where was the coat?", "time": "2023-04-01T00:00:00+00:00", "category": "plain",
                 "turns": ["s1:3"], "sessions": ["s1"]},
                {"id": "q3", "question": "What is out of paper?", "time": None, "category": "wrong",
                 "turns": ["s2:3"], "sessions": ["s2"]},
            ],
        }
    ],
}  # fmt: skip


def test_the_bench_measures_what_recall_answers(tmp_path: Path) -> None:
    given, out = tmp_path / "set.json", tmp_path / "out.jsonl"
    given.write_text(json.dumps(SET))
    done = CliRunner().invoke(quality.recall, [str(given), "--lexical", "--out", str(out)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert (told["name"], told["questions"], told["categories"]["plain"]["turn R@5"]) == ("small", 3, 100.0)
    assert told["foreign"] == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["question"] for line in lines] == ["q1", "q2", "q3"]
    assert lines[0]["turns"][0] == "s2:2"
    assert lines[0]["sessions"][0] == "s2"


def test_the_bench_asks_questions_of_other_conversations_too(tmp_path: Path) -> None:
    given, other = tmp_path / "set.json", tmp_path / "other.json"
    given.write_text(json.dumps(SET))
    asked = [
        {"id": "f1", "question": "Did Napoleon Bonaparte reach Moscow in winter?"},
        {"id": "f2", "question": "Who juggles oranges?"},
    ]
    other.write_text(json.dumps({"name": "o", "corpora": [{"name": "two", "turns": [], "questions": asked}]}))
    done = CliRunner().invoke(quality.recall, [str(given), "--lexical", "--other", str(other)])
    told = json.loads(done.output)
    assert (told["questions"], told["foreign"], told["foreign_silent"]) == (3, 2, 1)


def test_the_metrics_are_what_they_are_called() -> None:
    question = quality.Question("q", "?", turns=("a", "b"), sessions=("s", "t"))
    ranking = quality.Ranking("q", ["x", "a", "y", "y", "y", "b"], ["x", "s"])
    assert quality.scores(question, ranking) == pytest.approx(
        {"turn R@5": 0.5, "turn R@10": 1.0, "session R@5": 0.5, "session R@10": 0.5, "any@5": 1.0, "all@5": 0.0,
         "NDCG@10": 0.6309 / 1.6309}, abs=1e-3
    )  # fmt: skip


def test_every_step_of_the_bench_is_a_setting(tmp_path: Path) -> None:
    assert set(STEPS) <= set(Search.__struct_fields__)
    given = tmp_path / "set.json"
    given.write_text(json.dumps(SET))
    for step in STEPS:
        done = CliRunner().invoke(quality.recall, [str(given), "--without", step])
        assert done.exit_code == 0, done.output


def test_a_file_that_is_no_set_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "set.json"
    given.write_text('{"name": 3}')
    done = CliRunner().invoke(quality.recall, [str(given)])
    assert type(done.exception).__name__ == "Invalid"


# many matches


def test_of_more_equals_than_are_ranked_the_newest_are_found(memory: holdfast.Memory) -> None:
    for day in range(1, 29):
        say(memory, *[f"tulip {SYLLABLES[day % 10]}{number}" for number in range(20)], channel=f"{day}",
            timestamp=f"2023-02-{day:02}T10:00:00Z")  # fmt: skip
    found = recall(memory, "tulip", asked="2023-03-01")
    assert [hit["text"].rstrip("0123456789") for hit in found] == [f"tulip {SYLLABLES[28 % 10]}"] * 10


def test_common_words_rank_what_rarer_words_find(memory: holdfast.Memory) -> None:
    """So many records have the common word that only those with a rarer one are candidates."""
    found = (["orchid bread"] + ["harbour bread"] * 4 + ["butter bread"] * 5) * 600
    found[2_000] = "harbour orchid"
    lines = [
        {"role": "user", "content": f"{text} {SYLLABLES[number % 10]}{number}", "channel": f"c{number}"}
        for number, text in enumerate(found)
    ]
    both = memory.add(HISTORY, lines, time="timestamp", durable=False)[2_000]
    memory.put("note", "A harbour at dawn.", title="Dawn")
    asked = "orchid Harbour"  # a name: enough of the question for an answer
    assert [hit["title"] for hit in recall(memory, asked, kinds=["note"])] == ["Dawn"]
    assert recall(memory, "orchid harbour")[0]["id"] == both
    assert memory.find("orchid harbour").hits[0].record.id == both
