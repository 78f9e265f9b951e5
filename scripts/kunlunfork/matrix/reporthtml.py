"""The report as one HTML file that asks for nothing else."""

from __future__ import annotations

from importlib import resources

from kunlunfork import __version__
from kunlunfork.console import printable
from kunlunfork.matrix import report as reports
from kunlunfork.matrix import reportterm
from kunlunfork.matrix.report import Report

TEMPLATE = "report.html.j2"
# A page of tens of thousands of failures opens nowhere.
LIMIT = 500


def text(report: Report) -> str:
    """The page. Every value is escaped by the template engine."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["printable"] = lambda value: printable(str(value))
    template = environment.from_string((resources.files("kunlunfork.matrix") / TEMPLATE).read_text(encoding="utf-8"))
    page = template.render(
        report=report, limit=LIMIT, verdict=reportterm.verdict(report), place=reports.place, said=reports.said,
        command=reports.command, tool=__version__,
    )  # fmt: skip
    # Half a surrogate pair, which JSON can bring, has no place in UTF-8.
    return page.encode("utf-8", "backslashreplace").decode() + "\n"
