"""Tilescope: what does my Triton kernel really do? Flags, page, launch.

Worker processes import this file again under another name, so the page is imported only where it is served.
"""

from __future__ import annotations

import argparse
import os


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the Tilescope playground.")
    parser.add_argument(
        "--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="address to listen on"
    )
    parser.add_argument(
        "--port", type=int, default=int(os.environ.get("GRADIO_SERVER_PORT", "7860")), help="port to listen on"
    )
    flags = parser.parse_args()

    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from visualize.panels.serve import serve

    serve(flags.host, flags.port)


if __name__ == "__main__":
    main()
