"""``python -m turngate``: the same as the program ``turngate``."""

from turngate.cli.main import main

if __name__ == "__main__":
    main()
