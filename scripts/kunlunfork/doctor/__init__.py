"""What `kunlunfork doctor` looks at. Nothing of a target tree is imported or run in this process."""
