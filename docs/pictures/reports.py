"""Sheets of screenshots of reports, desktop and phone, light and dark, in a real Chromium.

    python docs/pictures/reports.py SHEET.png RUN/report.html

The sheets here are of `fedkin fit auto` on tables of 3, 50 and 1,000 sites; `report.png` is the top
of the page of `make run`:

    python docs/pictures/reports.py docs/pictures/report.png report.html --top
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.browser import Browser

DESKTOP, PHONE = (1100, 1500), (390, 1500)
# Sheets show how a page lies; who wants to read opens one.
SHEET_HEIGHT, COLOURS = 620, 64


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
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--top" in sys.argv)
