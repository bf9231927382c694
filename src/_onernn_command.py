"""The command `onernn`: a Ctrl-C while it is still imported ends it without a traceback."""

import signal

_before = signal.getsignal(signal.SIGINT)
if _before is signal.default_int_handler:  # and not ignored, as behind nohup
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    from onernn.cli import main as run  # takes most of the first half second

    signal.signal(signal.SIGINT, _before)
    try:
        run()
    finally:
        if _before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
