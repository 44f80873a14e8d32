from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import render_dashboards
from render_dashboards import views
from render_dashboards.page import draw

parser = argparse.ArgumentParser(
    prog="python -m render_dashboards",
    description=render_dashboards.__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder to write the PNGs to")
options = parser.parse_args()
with tempfile.TemporaryDirectory() as folder, views.prometheus(Path(folder)) as server:
    for choice in views.CHOICES.values():
        if choice.picture:
            path = options.out / choice.picture
            blank = draw(views.read(choice.uid), views.view(server, choice), path)
            print(path, *(f"no data: {title}" for title in blank), sep="\n  ")
