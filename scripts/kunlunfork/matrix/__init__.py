"""Parity with upstream, measured: engine environments, trees, cells, and faults that the tests must catch."""
