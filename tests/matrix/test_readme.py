"""README's table of parity is what was recorded of the fork as it is."""

from __future__ import annotations

from kunlunfork.content import Content
from kunlunfork.matrix import merge, report, reportmd, results

COMMAND = "kunlunfork matrix report ci/results/matrix.jsonl --format md --into README.md"


def test_the_table_in_the_readme_is_what_the_command_makes(content: Content) -> None:
    loaded = results.load([content.root / "ci" / "results" / "matrix.jsonl"])
    made = reportmd.text(report.make(merge.merge(loaded, merge.hashes_of(content)), None))
    document = (content.root / "README.md").read_text(encoding="utf-8")
    # An overlay or a series that changed makes its rows stale: they drop out until somebody has run the matrix again.
    assert reportmd.into(document, made) == document, f"make it again: {COMMAND}"
