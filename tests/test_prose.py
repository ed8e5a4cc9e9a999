"""The form of docstrings and documents: what STYLE asks for and a program can check."""

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_layout import MAY_IMPORT, ROOT

MOST_WORDS = 90  # of a paragraph
README_LINES = 130
# Words that begin a fragment where a docstring should say what its subject is or does.
FRAGMENT = re.compile(
    r"(The same|Of|Nothing|Again|What|Whether|Who|Which|How|Why|When|Where|Until|Not|Then|Also"
    r"|By|As|At|For|From|In|On|To|With|Without)\b"
)
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")]
DOCUMENTS += [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "examples").glob("*/README.md"))


def name_of(path: Path) -> str:
    """Return a document's name in the results of tests."""
    return str(path.relative_to(ROOT))


def sources(room: str) -> list[Path]:
    """Return the files of a room that people write; generated stubs are left out."""
    return [path for path in sorted((ROOT / room).rglob("*.py")) if "_pb2" not in path.name]


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every docstring: of the module, classes, functions and
    attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                text = inspect.cleandoc(node.value.value)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def paragraphs(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number and the words of each paragraph and list item of a document.

    Code, tables and headings are no paragraphs.
    """
    fenced, first, words = False, 0, list[str]()
    for number, line in enumerate([*path.read_text().splitlines(), ""], start=1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        other = fence or fenced or not line.strip() or line.startswith(("    ", "|", "#"))
        if words and (other or re.match(r"\s*([-*]|\d+\.) ", line)):
            yield first, words
            words = []
        if not other:
            first = first if words else number
            words += line.split()


@pytest.mark.parametrize("room", sorted({*MAY_IMPORT, "examples", "tests"}))
def test_no_docstring_begins_as_a_fragment(room: str) -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for path in sources(room)
        for place, text in docstrings(path)
        if FRAGMENT.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_no_paragraph_of_a_document_is_long(path: Path) -> None:
    found = [
        f"{path.name}:{number}: {len(words)} words"
        for number, words in paragraphs(path)
        if len(words) > MOST_WORDS
    ]
    assert not found, "\n".join(found)


def test_the_readme_stays_a_first_page() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES, "tables and options belong to docs/"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_of_a_document_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", path.read_text()):
        assert not target or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_anchors_of_a_document_exist(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", path.read_text()):
        document = path.parent / target if target else path
        if document.resolve() in DOCUMENTS:
            assert anchor in headings(document), f"{target}#{anchor}"


def test_the_site_has_each_document_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"^ +- (\S+\.md)$", nav, flags=re.MULTILINE)
    assert sorted(listed) == sorted(map(name_of, DOCUMENTS))


def headings(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_files_that_a_document_names_exist(path: Path) -> None:
    """A name in code font that looks like a file of a room is one."""
    rooms = "|".join([*MAY_IMPORT, "tests", "docs", "examples"])
    named = re.findall(rf"`((?:{rooms})/[\w/]+\.(?:py|md|proto|h|cpp))`", path.read_text())
    assert not {name for name in named if not (ROOT / name).exists()}


PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")


@functools.cache
def definitions(path: Path) -> set[str]:
    """Return the functions, classes, methods and constants of a file, as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        found |= names_of(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for each in node.body for name in names_of(each)}
    return found


def names_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_functions_that_a_document_names_exist(path: Path) -> None:
    """A place in code font, `room/file.py:Class.method`, is one."""
    for file, name in PLACE.findall(path.read_text()):
        assert (ROOT / file).exists() and name in definitions(ROOT / file), f"{file}:{name}"


def test_the_life_of_a_token_names_a_function_at_each_step() -> None:
    text = (ROOT / "docs" / "life-of-a-token.md").read_text()
    steps = re.findall(r"^\| (\d+) \| ([^|]*) \|", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, 1 + len(steps)))
    assert len(steps) > 40
    assert all(PLACE.findall(where) for _, where in steps)
