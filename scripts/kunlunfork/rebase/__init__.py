"""Moving a series to another release: text first, then proof that every edit is where it was."""
