"""``python -m onernn``: the command line."""

from _onernn_command import main

if __name__ == "__main__":
    main()
