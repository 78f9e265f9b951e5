"""Programs for other interpreters: each runs by its path and imports nothing of kunlunfork."""
