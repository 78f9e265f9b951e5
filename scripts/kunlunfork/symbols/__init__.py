"""What a release of upstream defines: every class, function and constant with its fingerprint; nothing of it is run."""
