"""What the fork relies on in upstream, and what became of it in another release; by reading alone."""
