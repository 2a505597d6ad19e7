"""`python -m bouquet …`: the command `bouquet`."""

from bouquet.cli.main import main

if __name__ == "__main__":
    main()
