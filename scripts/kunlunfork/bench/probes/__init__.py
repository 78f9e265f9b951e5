"""Run by the Python of an engine environment, as files of their own: only the standard library, torch and vLLM here."""
