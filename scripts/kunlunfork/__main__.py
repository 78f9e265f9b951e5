from kunlunfork.cli import main

main()
