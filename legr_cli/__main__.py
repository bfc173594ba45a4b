"""`python -m legr_cli`."""

from legr_cli.cli import main

if __name__ == "__main__":
    main()
