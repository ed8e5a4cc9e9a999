"""`baton` as its peers know the previous release; its arguments are those of `baton`."""

from previous import speak_previous

speak_previous()

from baton.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
