"""`python -m bide` is the command `bide`."""

from bide.cli import main

if __name__ == "__main__":
    main()
