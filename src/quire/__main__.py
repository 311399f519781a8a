"""`python -m quire`: the command line, for environments where the `quire` script is not on the path."""

from quire.cli import main

if __name__ == "__main__":
    main()
