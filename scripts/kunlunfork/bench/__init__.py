"""Measuring the tool against others, on the machine at hand. A benchmark is no test: it says numbers."""
