"""Sheets of screenshots of reports, desktop and phone, light and dark, in a real Chromium.

    python docs/pictures/reports.py SHEET.png RUN/report.html
    python docs/pictures/reports.py --all

The second makes the sheets here: `fedkin fit auto` on drawn tables of 3, 50 and 1,000 sites, some
minutes. `report.png` is the top of the page of `make run`:

    python docs/pictures/reports.py docs/pictures/report.png report.html --top
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.browser import Browser

DESKTOP, PHONE = (1100, 1500), (390, 1500)
# Sheets show how a page lies; who wants to read opens one.
SHEET_HEIGHT, COLOURS = 620, 64
# Sites and rows of each.
SIZES = {"three": (3, 60), "fifty": (50, 40), "thousand": (1000, 12)}


def table(n_sites: int, n_rows: int) -> str:
    """A drawn table of sites that differ by degrees, as the text of a file."""
    rng = np.random.default_rng(n_sites)
    age, dose = rng.normal(60.0, 12.0, (n_sites, n_rows)), rng.uniform(0.0, 5.0, (n_sites, n_rows))
    level, slope = rng.normal(20.0, 3.0, (n_sites, 1)), rng.normal(1.5, 0.6, (n_sites, 1))
    days = level + 0.1 * age - slope * dose + rng.normal(0.0, 2.0, (n_sites, n_rows))
    lines = [
        f"hospital-{k:04d},{age[k, i]:.1f},{dose[k, i]:.2f},{days[k, i]:.2f}"
        for k in range(n_sites)
        for i in range(n_rows)
    ]
    return "\n".join(["hospital,age,dose,days", *lines, ""])


def all_sheets(folder: Path) -> None:
    """The sheets of all sizes."""
    for word, size in SIZES.items():
        with tempfile.TemporaryDirectory() as made:
            rows, run = Path(made) / "table.csv", Path(made) / "run"
            rows.write_text(table(*size), encoding="utf-8")
            asked = ["fit", "auto", str(rows), "--client", "hospital", "--target", "days"]
            command = [sys.executable, "-m", "fedkin.cli", *asked, "--out", str(run)]
            subprocess.run(command, check=True, capture_output=True)
            main(folder / f"report_{word}.png", run / "report.html", False)


def shot(page: Path, size: tuple[int, int], dark: bool, phone: bool) -> Image.Image:
    """What a window of this size shows; complains of whatever the page's console complains of."""
    with Browser(*size, phone=phone) as browser, tempfile.TemporaryDirectory() as folder:
        browser.scheme(dark)
        browser.open(page)
        browser.screenshot(Path(folder) / "shot.png", whole=False)
        assert browser.errors == [], browser.errors
        return Image.open(Path(folder) / "shot.png").convert("RGB")


def sheet(page: Path) -> Image.Image:
    """Four shots side by side, small."""
    wanted = [(size, dark, size is PHONE) for dark in (False, True) for size in (DESKTOP, PHONE)]
    shots = [shot(page, *one) for one in wanted]
    small = [s.resize((s.width * SHEET_HEIGHT // s.height, SHEET_HEIGHT)) for s in shots]
    whole = Image.new("RGB", (sum(s.width for s in small) + 10 * 3, SHEET_HEIGHT), "#888888")
    left = 0
    for one in small:
        whole.paste(one, (left, 0))
        left += one.width + 10
    return whole


def main(target: Path, page: Path, top: bool) -> None:
    made = shot(page, (1100, 850), False, False) if top else sheet(page)
    made.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)
    print(f"wrote {target}, {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    if sys.argv[1:] == ["--all"]:
        all_sheets(Path(__file__).parent)
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), "--top" in sys.argv)
