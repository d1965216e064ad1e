"""`python -m tilescope` is the command `tilescope`."""

from tilescope.cli.main import main

if __name__ == "__main__":
    main()
