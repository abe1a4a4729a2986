"""The site: `make docs` builds it into docs/_build/html; it opens from disk, without a network.

Some pages are files that are read elsewhere too, such as the README of a folder, or a section of one. The
page in docs/ is then one line, a link to it, which the build replaces by what it leads to. Links between files
of the repository become links between pages; files that are no pages are copied into the site.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "chopper-interop"
author = "the chopper-interop contributors"
copyright = author  # noqa: A001 # Sphinx' name
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_static"]

html_theme = "furo"
html_title = "chopper-interop"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it fetches pages, which browsers refuse from disk
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "tango", "github-dark"

highlight_language = "none"  # of docstrings' drawings; pages state theirs
add_module_names = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # sections of files begin at their second level

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

default_role = "code"  # docstrings mark names by single backticks
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
_ONE_LINK = re.compile(r"\A\[[^\]]*\]\(([^)#\s]+)(?:#([\w-]+))?\)\n")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[\w-]+)?\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def _slug(heading: str) -> str:
    """Anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


@cache
def _sections(path: Path) -> dict[str, str]:
    """Sections of a file by anchor, each as a page of its own; "" is all of it."""
    text = path.read_text("utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {"": text} | {
        _slug(part.partition("\n")[0]): re.sub(
            r"^##(#+) ", r"#\1 ", f"# {part}", flags=re.MULTILINE
        )
        for part in parts
    }


@cache
def _made_pages() -> dict[Path, dict[str, Path]]:
    """By file of the repository and anchor of a section, the page that is made of it."""
    result: dict[Path, dict[str, Path]] = {}
    for page in DOCS.rglob("*.md"):
        link = _ONE_LINK.match(page.read_text("utf-8"))
        if link:
            result.setdefault((page.parent / link[1]).resolve(), {})[link[2] or ""] = page
    return result


def _page_of(target: Path, anchor: str) -> tuple[Path, str]:
    """File to link to for a file of the repository and an anchor in it, and the anchor there."""
    pages = _made_pages().get(target, {})
    if anchor in pages:
        return pages[anchor], ""
    for section, page in pages.items():
        headings = re.findall(r"^#+ (.*)$", _sections(target)[section], re.MULTILINE)
        if not anchor or anchor in map(_slug, headings):
            return page, anchor
    return target, anchor


def _insert_file(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the link that a page consists of by what it leads to, and make links between pages."""
    page = DOCS / f"{docname}.md"
    if not page.exists():
        return
    text, home = source[0], page
    link = _ONE_LINK.match(text)
    if link:
        home = (page.parent / link[1]).resolve()
        app.env.note_dependency(str(home))
        text = _sections(home)[link[2] or ""] + "\n" + text[link.end() :]

    def linked(match: re.Match[str]) -> str:
        target = (home.parent / match[2]).resolve()
        if target.is_dir():
            return match[1]
        target, anchor = _page_of(target, (match[3] or "").removeprefix("#"))
        return f"[{match[1]}]({os.path.relpath(target, page.parent)}{'#' * bool(anchor)}{anchor})"

    parts = _FENCED.split(text)
    source[0] = "".join(p if p.startswith("```") else _LINK.sub(linked, p) for p in parts)


def _visit_equation(translator: HTML5Translator, node: Element) -> None:
    """Write an equation as MathML, which browsers draw without a script."""
    is_block = node.tagname == "math_block"
    made = convert(node.astext(), display="block" if is_block else "inline")
    translator.body.append(f'<div class="math">{made}</div>' if is_block else made)
    from docutils.nodes import SkipNode

    raise SkipNode


def _refuse_fetching(_app: Sphinx, pagename: str, _template: str, context: Any, _tree: Any) -> None:
    """Refuse pages that fetch something from a network when they are opened."""
    fetches = r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//"
    if re.search(fetches, context.get("body", "")):
        raise ValueError(f"{pagename} fetches something from a network")


def _link_pictures(_app: Sphinx, doctree: Element) -> None:
    """Let pictures lead to themselves in full size, as Sphinx does where a width is stated."""
    from docutils.nodes import image

    for picture in doctree.findall(image):
        if picture.get("alt"):  # outputs of notebooks have none
            picture["width"] = "100%"


def setup(app: Sphinx) -> None:
    """Register what this file adds."""
    app.connect("source-read", _insert_file)
    app.connect("doctree-read", _link_pictures)
    app.connect("html-page-context", _refuse_fetching)
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_visit_equation, None), block_renderers=(_visit_equation, None)
    )
