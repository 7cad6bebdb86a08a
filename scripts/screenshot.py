"""Make the picture of `vla look` in the documentation, in a real browser, from a recording of `vla demo`.

    python scripts/screenshot.py BAG [--at S] [--output docs/images/look.webp]

Needs Debian's chromium, which draws the page without a display and without a network.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
from pathlib import Path

from PIL import Image

from vla_accel_ros.tools.look.recorded import Recorded
from vla_accel_ros.tools.look.server import Look, serve

SIZE = (1500, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bag", type=Path)
    parser.add_argument("--at", type=float, default=10.0, help="seconds after the bag's first message")
    parser.add_argument("--output", type=Path, default=Path("docs/images/look.webp"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serve(Look(Recorded(given.bag)), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        png = Path(folder) / "look.png"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={SIZE[0]},{SIZE[1]}"]
        options += ["--virtual-time-budget=4000", f"--screenshot={png}"]
        address = f"http://127.0.0.1:{server.server_port}/#{given.at}"
        subprocess.run(["chromium", *options, address], check=True, capture_output=True)
        server.shutdown()
        Image.open(png).convert("RGB").save(given.output, quality=80, method=6)
    print(f"{given.output}: {given.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
