"""`python -m tailproof` is the `tailproof` command."""

from tailproof.cli import main

if __name__ == "__main__":
    main()
