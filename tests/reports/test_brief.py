"""A report in a few lines, as a log shows it."""

import dataclasses

from rebasin_cli.reports import Gate
from rebasin_cli.reports.conclusion import brief

from .test_reports import example


def test_it_has_the_figures_of_endpoints_and_shipped_row_and_every_gate_with_its_limit():
    report = example()
    lines = brief(report)
    assert lines[0].startswith("A runs/a.safetensors: test loss ") and ", accuracy " in lines[0]
    assert lines[2].startswith("▸ aligned + reset: test loss ") and " nats (chord)" in lines[2]
    marks = [line.partition("  ")[0] for line in lines if line.startswith(("✓", "✗"))]
    assert marks == ["✓ met" if gate.met else "✗ NOT MET" for gate in report.gates]
    hostile = Gate("\x1b[2J", 1.0, 2.0, True, "a\n::error::b", "c")
    told = brief(dataclasses.replace(report, gates=(hostile,)))[-1]
    assert "\x1b" not in told and "\n" not in told
    assert brief(dataclasses.replace(report, rows=(), endpoints=(), gates=())) == []
