"""The static figures of `tools.house`, on a small package that is written for each test."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from tools import house


def package(folder: Path, **modules: str) -> list[house.Module]:
    """Write a package `shop`; `__` in a name separates folders, and every folder gets an `__init__`."""
    for name, text in modules.items():
        path = folder.joinpath("shop", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        for parent in path.relative_to(folder).parents:
            if parent != Path("."):
                folder.joinpath(parent, "__init__.py").touch()
    return house.read(folder / "shop")


def test_lines_are_code_or_docs_or_blank(tmp_path: Path) -> None:
    text = '''\
    """What this is.

    And more.
    """

    LIMIT = 3  # a comment after code is code
    """What the limit is for."""

    # a comment

    QUERY = """
    # not a comment
    """
    '''
    (module,) = (module for module in package(tmp_path, prices=text) if module.last == "prices")
    assert house.size(module) == house.Size(modules=1, lines=13, code=4, docs=6, blank=3)


def test_a_nested_package_has_a_row_of_its_own(tmp_path: Path) -> None:
    found = house.sizes(package(tmp_path, orders="A = 1\n", storage__api="B = 1\n", storage__files__tree="C = 1\n\n"))
    assert list(found) == ["shop", "shop.storage", "shop.storage.files", "sum"]
    assert found["shop.storage"] == house.Size(modules=2, lines=1, code=1)
    assert found["shop.storage.files"] == house.Size(modules=2, lines=2, code=1, blank=1)
    assert found["sum"] == house.Size(modules=6, lines=4, code=3, blank=1)


def test_a_module_with_one_importer_is_counted_and_one_with_two_is_not(tmp_path: Path) -> None:
    modules = package(
        tmp_path,
        once="A = 1\n",
        typed="B = 1\n",
        twice="C = 1\n",
        storage__near="D = 1\n",
        first="from typing import TYPE_CHECKING\nfrom shop import once, twice\nif TYPE_CHECKING:\n    from shop.typed import B\n",
        storage__second="import shop.twice\n\ndef late():\n    from . import near\n    from ..twice import C\n",
    )
    measure = house.one_importer(modules)
    assert measure.found == ["shop.once", "shop.storage.near", "shop.typed"]
    assert measure.figures == {"modules": 3, "lines": 3}


def test_a_command_module_that_is_loaded_by_name_is_not_counted(tmp_path: Path) -> None:
    main = 'import importlib\nHOME = {"put": "records"}\nimportlib.import_module(f"shop.cli.{HOME[name]}")\n'
    modules = package(
        tmp_path, cli__main=main, cli__records="A = 1\n", cli__other="from shop.cli import records, main\n"
    )
    assert house.one_importer(modules).found == ["shop.cli.main"]


def called(folder: Path, text: str) -> list[str]:
    """Return the names of the one-caller functions of one module."""
    return [found.split()[1] for found in house.one_caller(package(folder, calls=text)).found]


def test_a_private_function_with_one_caller_is_counted(tmp_path: Path) -> None:
    text = """
    def _once(): ...
    def _twice(): ...
    def _never(): ...
    def public(): ...
    def __getattr__(name): ...
    def work():
        _once(), _twice(), public()
        return _twice
    """
    measure = house.one_caller(package(tmp_path, calls=text))
    assert measure.found == ["shop/calls.py:2 _once"]
    assert measure.figures == {"functions": 1, "of": 6, "percent": 16.7}


def test_recursion_is_no_caller(tmp_path: Path) -> None:
    text = """
    def _again(n):
        return _again(n - 1)
    def _down(n):
        return _down(n - 1) + _down(n - 2)
    START = _down(3)
    """
    assert called(tmp_path, text) == ["_down"]


def test_methods_of_the_same_name_are_told_apart_by_their_class(tmp_path: Path) -> None:
    text = """
    class Cart:
        def total(self): return self._sum() + self._sum()
        def _sum(self): ...
    class Order:
        def total(self): return self._sum()
        def _sum(self): ...
    class Base:
        def _step(self): ...
    class Child(Base):
        def run(self): return self._step()
    """
    found = house.one_caller(package(tmp_path, calls=text)).found
    assert found == ["shop/calls.py:7 _sum", "shop/calls.py:9 _step"]


def test_a_function_and_a_method_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    text = """
    def _sum(): ...
    class Cart:
        def total(self): return _sum()
        def more(self): return _sum()
        def all(self): return self._sum()
        def _sum(self): ...
    """
    assert house.one_caller(package(tmp_path, calls=text)).found == ["shop/calls.py:7 _sum"]


def test_a_private_function_is_looked_for_in_its_own_module(tmp_path: Path) -> None:
    text = "def _read(): ...\n_read()\n"
    found = house.one_caller(package(tmp_path, one=text, two=text)).found
    assert found == ["shop/one.py:1 _read", "shop/two.py:1 _read"]


def test_a_class_name_in_two_modules_is_reported(tmp_path: Path) -> None:
    modules = package(tmp_path, one="class Entry: ...\nclass Only: ...\n", two="class _Entry: ...\n")
    assert house.shared_class_names(modules) == house.Measure(
        "class names with several meanings", {"names": 1}, ["Entry: shop.one, shop.two"]
    )


def test_gerunds_are_reported_and_nouns_are_not(tmp_path: Path) -> None:
    modules = package(tmp_path, _keeping="", ranking="", settings="", storage__writing="", string="", orders="")
    assert house.gerunds(modules).found == ["shop._keeping", "shop.storage.writing"]


def test_the_lengths_of_functions_are_measured_and_the_longest_named(tmp_path: Path) -> None:
    text = "class Cart:\n    @property\n    def total(self):\n        a = 1\n        b = 2\n        return a + b\n"
    text += "".join(f"def f{number}():\n    return 1\n" for number in range(9))
    measure = house.function_lengths(package(tmp_path, cart=text))
    assert measure.figures == {"p50": 2, "p90": 4, "p99": 4}
    assert measure.found == ["shop/cart.py:3 total: 4"]


def test_modules_without_a_function_have_no_lengths(tmp_path: Path) -> None:
    assert house.function_lengths(package(tmp_path, prices="A = 1\n")).figures == {}


def test_modules_that_import_each_other_when_they_are_loaded_are_a_cycle(tmp_path: Path) -> None:
    modules = package(
        tmp_path,
        one="from shop import two\n",
        two="try:\n    import shop.three\nexcept ImportError:\n    pass\n",
        three="from . import one\n",
        user="from shop import one\n",
        late="class Cart:\n    def work(self):\n        from shop import typed\n",
        typed="from typing import TYPE_CHECKING\nfrom shop import late\nif TYPE_CHECKING:\n    from shop import user\n",
    )
    measure = house.import_cycles(modules)
    assert measure.figures == {"cycles": 1}
    assert measure.found == ["shop.one shop.three shop.two"]


@pytest.mark.parametrize("markdown", [False, True])
def test_tables_show_every_package_and_measure(tmp_path: Path, markdown: bool) -> None:
    package(tmp_path, storage__writing="A = 1\n" * 1200)
    text = house.shown(*house.static(tmp_path / "shop"), markdown)
    rows = [line.replace("|", " ").split() for line in text.splitlines()]
    assert ["shop.storage", "2", "1,200", "1,200", "0", "0"] in rows
    assert ["modules", "named", "by", "gerunds", "modules", "1"] in rows
    assert ("|---" in text.replace(" ", "")) is markdown


def test_json_has_the_numbers_and_the_names(tmp_path: Path) -> None:
    package(tmp_path, storage__writing="A = 1\n")
    report = json.loads(house.as_json(*house.static(tmp_path / "shop")))
    assert report["packages"]["sum"] == {"modules": 3, "lines": 1, "code": 1, "docs": 0, "blank": 0}
    assert report["measures"]["modules named by gerunds"] == {"modules": 1, "found": ["shop.storage.writing"]}
