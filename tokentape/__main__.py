"""The command `tokentape`, also `python -m tokentape`: Ctrl-C while Python imports it ends it there, without a traceback."""

import signal


def main() -> None:
    """Runs the command line and exits with its code; who has Ctrl-C ignored, as `nohup` does, keeps that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tokentape.flows import cli

    signal.signal(signal.SIGINT, before)
    cli.main()


if __name__ == "__main__":
    main()
