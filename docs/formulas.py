"""Mathematics drawn into the pages by matplotlib, so that nothing is fetched to read them."""

from html import escape
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

# Paths come in the units of a font of this size, whatever size is asked for.
SIZE = text_to_path.FONT_SCALE
LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}


def drawn(formula: str) -> str:
    """A formula in LaTeX as an SVG as high as its letters, in the colour of the text around."""
    words = " ".join(formula.split())
    text = f"${words}$"
    font = FontProperties(size=SIZE, math_fontfamily="dejavuserif")
    width, height, depth = text_to_path.get_text_width_height_descent(text, font, ismath=True)
    path = Path(*text_to_path.get_text_path(font, text, ismath=True))
    steps = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        if code == Path.CLOSEPOLY:
            steps.append("Z")
        else:
            # Pages count from above, paths from below.
            places = zip(points[::2], points[1::2])
            steps.append(LETTERS[code] + " ".join(f"{x:.1f},{-y:.1f}" for x, y in places))
    box = f"0 {depth - height:.2f} {width:.2f} {height:.2f}"
    style = f"height:{height / SIZE:.3f}em;vertical-align:{-depth / SIZE:.3f}em;overflow:visible"
    return (
        f'<svg class="formula" role="img" aria-label="{escape(words)}" viewBox="{box}" '
        f'style="{style}"><path fill="currentColor" d="{"".join(steps)}"/></svg>'
    )


def _inline(translator: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    translator.body.append(drawn(node.astext()))
    raise SkipNode


def _display(translator: Any, node: Any) -> None:
    from docutils.nodes import SkipNode

    picture = drawn(node.astext())
    translator.body.append(f'<div style="text-align:center;margin:1em 0">{picture}</div>')
    raise SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx how formulas become HTML."""
    app.add_html_math_renderer("drawn", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
