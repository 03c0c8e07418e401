"""`python -m loadgen` is the `loadgen` command."""

from loadgen.cli import main

if __name__ == "__main__":
    main()
