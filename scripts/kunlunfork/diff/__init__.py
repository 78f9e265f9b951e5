"""How the fork differs from mainline: text, provenance, symbols, interfaces."""
