"""The command `tilescope`; `python -m tilescope` is the same."""

import sys

from tilescope.application import FOLDER


def main() -> None:
    sys.path.insert(0, str(FOLDER))
    import app

    app.main()


if __name__ == "__main__":
    main()
