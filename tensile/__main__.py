"""`python -m tensile` and the `tensile` program."""

from tensile.cli import main

if __name__ == "__main__":
    main()
