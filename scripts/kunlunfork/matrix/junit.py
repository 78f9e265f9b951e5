"""The report as JUnit XML, of the form that CI systems agree on: testsuites, testsuite, testcase, failure, error.

It is valid under junit-10.xsd of Jenkins' xUnit plugin.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from kunlunfork.matrix import report as reports
from kunlunfork.matrix.cells import ERROR, FAILED, SKIPPED, Cell
from kunlunfork.matrix.report import Report

# Not a character of XML 1.0, whatever way it is written.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """Text that XML can hold; what it cannot is written as Python does (`\\x1b`)."""
    return _FORBIDDEN.sub(lambda m: ascii(m[0])[1:-1], text)


def text(report: Report) -> str:
    """One suite for each pin, device and tier. Cells that are known only by their sums are in none."""
    suites: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in report.cells:
        suites.setdefault((cell.run.pin, cell.run.device, cell.run.tier), []).append(cell)
    root = ET.Element("testsuites", {"name": "kunlunfork matrix", **_counts(report.cells)})
    del root.attrib["skipped"]  # Jenkins' schema has none here
    for (pin, device, tier), cells in sorted(suites.items()):
        about = {"name": clean(f"{tier} {pin} {device}"), "hostname": "localhost"}
        about["timestamp"] = clean((cells[-1].run.date or "1970-01-01T00:00:00")[:19])
        suite = ET.SubElement(root, "testsuite", {**about, **_counts(cells)})
        properties = ET.SubElement(suite, "properties")
        run = cells[-1].run
        known = {"overlay": run.overlay, "series": run.series, "machine": run.machine, **run.versions}
        for name, value in known.items():
            ET.SubElement(properties, "property", name=clean(name), value=clean(value))
        for cell in cells:
            _case(suite, cell)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _counts(cells: Sequence[Cell]) -> dict[str, str]:
    def count(outcome: str) -> str:
        return str(sum(c.outcome == outcome for c in cells))

    return {
        "tests": str(len(cells)),
        "failures": count(FAILED),
        "errors": count(ERROR),
        "skipped": count(SKIPPED),
        "time": f"{sum(c.seconds for c in cells):.3f}",
    }


def _case(suite: ET.Element, cell: Cell) -> None:
    run = cell.run
    group = ".".join((run.pin.replace(".", "_"), run.device, run.tier, cell.launcher.replace(":", ".") or "rules"))
    # The name within the class; pytest's id has the launcher once more.
    name = cell.test.rpartition("::")[2]
    case = ET.SubElement(suite, "testcase", classname=clean(group), name=clean(name), time=f"{cell.seconds:.3f}")
    if cell.outcome == SKIPPED:
        ET.SubElement(case, "skipped", message=clean(cell.message or ""))
    elif cell.bad:
        kind = "failure" if cell.outcome == FAILED else "error"
        where = reports.place(cell)
        found = ET.SubElement(case, kind, type=cell.outcome, message=clean(reports.said(cell)[:500]))
        lines = [*([f"first difference: {where}"] if where else []), cell.message or "", reports.command(cell)]
        found.text = clean("\n".join(lines))
